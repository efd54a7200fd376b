// A Flink job on a MiniCluster: what is in one topic goes to another one, each record once.
//
//   java -cp ... FlinkCopy.java BOOTSTRAP FROM TO CHECKPOINTS [CHECKPOINT]
//
// From CHECKPOINT it goes on; transactions that were flushed for it and not committed are committed then.

import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

public final class FlinkCopy {
    private FlinkCopy() {}

    public static void main(String[] words) throws Exception {
        Configuration config = new Configuration();
        config.setString("execution.checkpointing.interval", "500 ms");
        config.setString("execution.checkpointing.dir", words[3]);
        config.setString("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
        config.setString("execution.checkpointing.tolerable-failed-checkpoints", "1000");
        config.setString("restart-strategy.type", "fixed-delay");
        config.setString("restart-strategy.fixed-delay.attempts", "1000");
        config.setString("restart-strategy.fixed-delay.delay", "500 ms");
        if (words.length > 4) {
            config.setString("execution.state-recovery.path", words[4]);
        }
        StreamExecutionEnvironment job = StreamExecutionEnvironment.createLocalEnvironment(2, config);
        KafkaSource<String> source =
                KafkaSource.<String>builder()
                        .setBootstrapServers(words[0])
                        .setTopics(words[1])
                        .setGroupId("flink")
                        .setStartingOffsets(OffsetsInitializer.earliest())
                        .setValueOnlyDeserializer(new SimpleStringSchema())
                        .build();
        KafkaSink<String> sink =
                KafkaSink.<String>builder()
                        .setBootstrapServers(words[0])
                        .setRecordSerializer(
                                KafkaRecordSerializationSchema.<String>builder()
                                        .setTopic(words[2])
                                        .setValueSerializationSchema(new SimpleStringSchema())
                                        .build())
                        .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                        .setTransactionalIdPrefix("flink-copy")
                        .setProperty("transaction.timeout.ms", "600000")
                        .build();
        job.fromSource(source, WatermarkStrategy.noWatermarks(), "from").uid("from").sinkTo(sink).uid("to");
        job.execute("copy");
    }
}
