// Calls of Confluent's own Go client for version 3 of its REST API; prints a line of JSON for each:
// {"call": …, "error": …, "body": …, "answer": …}. Run by test_rest_sdk.py.
package main

import (
	"context"
	"encoding/json"
	"os"
	"time"

	"github.com/antihax/optional"
	rest "github.com/confluentinc/kafka-rest-sdk-go/kafkarestv3"
)

func show(call string, answer interface{}, err error) {
	line := map[string]interface{}{"call": call, "answer": answer}
	if err != nil {
		line["error"] = err.Error()
		if refused, ok := err.(rest.GenericOpenAPIError); ok {
			line["body"] = json.RawMessage(refused.Body())
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
		panic(err)
	}
}

func main() {
	configuration := rest.NewConfiguration()
	configuration.BasePath = os.Args[1] + "/v3"
	group := os.Args[2]
	client := rest.NewAPIClient(configuration)
	ctx := context.Background()
	clusters, _, err := client.ClusterV3Api.ClustersGet(ctx)
	show("clusters", clusters, err)
	id := clusters.Data[0].ClusterId

	wanted := optional.NewInterface(rest.CreateTopicRequestData{TopicName: "sdk", PartitionsCount: 2})
	for _, call := range []string{"create", "create again"} {
		made, _, err := client.TopicV3Api.CreateKafkaTopic(ctx, id, &rest.CreateKafkaTopicOpts{CreateTopicRequestData: wanted})
		show(call, made, err)
	}
	topics, _, err := client.TopicV3Api.ListKafkaTopics(ctx, id)
	show("topics", topics, err)
	partitions, _, err := client.PartitionV3Api.ListKafkaPartitions(ctx, id, "sdk")
	show("partitions", partitions, err)

	var key, value interface{} = "k", map[string]interface{}{"id": 7}
	partition := int32(1)
	at := time.Date(2026, 1, 31, 12, 0, 0, 250000000, time.FixedZone("", 3600))
	for _, kind := range []string{"JSON", "AVRO"} {
		record := optional.NewInterface(rest.ProduceRequest{
			PartitionId: &partition,
			Timestamp:   &at,
			Key:         &rest.ProduceRequestData{Type: "STRING", Data: &key},
			Value:       &rest.ProduceRequestData{Type: kind, Data: &value},
		})
		report, _, err := client.RecordsV3Api.ClustersClusterIdTopicsTopicNameRecordsPost(ctx, id, "sdk",
			&rest.ClustersClusterIdTopicsTopicNameRecordsPostOpts{ProduceRequest: record})
		show("produce "+kind, report, err)
	}

	days := "86400000"
	_, err = client.ConfigsV3Api.UpdateKafkaTopicConfig(ctx, id, "sdk", "retention.ms",
		&rest.UpdateKafkaTopicConfigOpts{UpdateConfigRequestData: optional.NewInterface(rest.UpdateConfigRequestData{Value: &days})})
	show("set", nil, err)
	setting, _, err := client.ConfigsV3Api.GetKafkaTopicConfig(ctx, id, "sdk", "retention.ms")
	show("setting", setting, err)
	settings, _, err := client.ConfigsV3Api.ListKafkaTopicConfigs(ctx, id, "sdk")
	show("settings", settings, err)
	cluster, _, err := client.ConfigsV3Api.ListKafkaClusterConfigs(ctx, id)
	show("cluster settings", cluster, err)

	groups, _, err := client.ConsumerGroupV3Api.ListKafkaConsumerGroups(ctx, id)
	show("groups", groups, err)
	lags, _, err := client.ConsumerGroupV3Api.ListKafkaConsumerLags(ctx, id, group)
	show("lags", lags, err)
	summary, _, err := client.ConsumerGroupV3Api.GetKafkaConsumerGroupLagSummary(ctx, id, group)
	show("lag summary", summary, err)

	_, err = client.TopicV3Api.DeleteKafkaTopic(ctx, id, "sdk")
	show("delete", nil, err)
	gone, _, err := client.TopicV3Api.GetKafkaTopic(ctx, id, "sdk")
	show("gone", gone, err)
}
