// A client of transactional list-append, with Kafka's own producer and consumer: what append_client.py does, and notes.
//
//   java -cp ... AppendClient BOOTSTRAP TOPIC KEYS PRODUCER LIFE NOTES LOCKS SEED

import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.FencedInstanceIdException;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class AppendClient {
    private static final int FENCED = 3;
    private static final long PER_LIFE = 1_000_000L;
    private static final long LIVES = 1000L;

    private final String topic;
    private final int keys;
    private final String name;
    private final int life;
    private final FileOutputStream notes;
    private final String locks;
    private final Random random;
    private final long[] readTo;
    private long number;
    private long moved;
    private final KafkaProducer<String, String> producer;
    private final KafkaConsumer<String, String> consumer;
    private volatile boolean ended;

    private AppendClient(String[] words) throws IOException {
        topic = words[1];
        keys = Integer.parseInt(words[2]);
        name = words[3];
        life = Integer.parseInt(words[4]);
        notes = new FileOutputStream(words[5], true);
        locks = words[6];
        random = new Random(words[7].hashCode() * 31L + name.hashCode() * 7L + life);
        number = (Long.parseLong(name.substring(name.lastIndexOf('-') + 1)) * LIVES + life) * PER_LIFE;
        moved = life * PER_LIFE;
        readTo = new long[keys];
        Properties same = new Properties();
        same.put("bootstrap.servers", words[0]);
        same.put("reconnect.backoff.ms", "20");
        same.put("reconnect.backoff.max.ms", "200");
        same.put("default.api.timeout.ms", "10000");
        same.put("request.timeout.ms", "5000");
        Properties writing = new Properties();
        writing.putAll(same);
        writing.put("transactional.id", name);
        writing.put("transaction.timeout.ms", "10000");
        writing.put("delivery.timeout.ms", "10000");
        writing.put("max.block.ms", "10000");
        writing.put("linger.ms", "1");
        producer = new KafkaProducer<>(writing, new StringSerializer(), new StringSerializer());
        Properties reading = new Properties();
        reading.putAll(same);
        reading.put("group.id", "g-" + name);
        reading.put("enable.auto.commit", "false");
        reading.put("isolation.level", "read_committed");
        reading.put("auto.offset.reset", "none");
        reading.put("fetch.max.wait.ms", "20");
        consumer = new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer());
    }

    private synchronized void note(String event, String what) {
        String line = "{\"e\": \"" + event + "\", \"at\": " + System.nanoTime() + what + "}\n";
        try {
            notes.write(line.getBytes(StandardCharsets.UTF_8));
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    private static String txn(String transaction) {
        return ", \"txn\": \"" + transaction + "\"";
    }

    private void run() throws IOException {
        note("init", "");
        untilDone(producer::initTransactions);
        note("life", "");
        for (int key = 0; key < keys; key++) {
            find(key);
        }
        for (int count = 0; !ended; count++) {
            transaction(name + "." + life + "." + count);
        }
        producer.close();
        consumer.close();
    }

    private void find(int key) {
        TopicPartition place = new TopicPartition(topic, key);
        untilDone(() -> {
            long asked = System.nanoTime();
            OffsetAndMetadata at = consumer.committed(Set.of(place)).get(place);
            String found = ", \"offset\": " + (at == null ? -1 : at.offset()) + ", \"asked\": " + asked;
            note("found", ", \"key\": " + key + found);
        });
    }

    private List<Integer> some(int count) {
        List<Integer> all = new ArrayList<>();
        for (int key = 0; key < keys; key++) {
            all.add(key);
        }
        Collections.shuffle(all, random);
        return all.subList(0, Math.min(count, keys));
    }

    private void transaction(String transaction) throws IOException {
        TreeSet<Integer> writes = new TreeSet<>(some(new int[] {1, 1, 2, 3}[random.nextInt(4)]));
        List<Integer> steps = new ArrayList<>();
        for (int times = new int[] {1, 1, 2}[random.nextInt(3)]; times > 0; times--) {
            steps.addAll(writes);
        }
        for (int key : some(random.nextInt(3))) {
            steps.add(-1 - key);
        }
        Collections.shuffle(steps, random);
        List<FileChannel> kept = new ArrayList<>();
        try {
            if (!locks.equals("-")) {
                for (int key : writes) {
                    Path path = Path.of(locks, Integer.toString(key));
                    FileChannel channel = FileChannel.open(path, StandardOpenOption.CREATE, StandardOpenOption.WRITE);
                    kept.add(channel);
                    channel.lock();
                }
            }
            within(transaction, steps, writes);
        } finally {
            for (FileChannel channel : kept) {
                channel.close();
            }
        }
    }

    private void within(String transaction, List<Integer> steps, TreeSet<Integer> writes) {
        note("begin", txn(transaction));
        try {
            producer.beginTransaction();
            for (int step : steps) {
                if (step >= 0) {
                    append(transaction, step);
                } else {
                    read(transaction, -1 - step);
                }
            }
            if (random.nextInt(10) < 4) {
                move(transaction, writes.first());
            }
            if (random.nextInt(4) < 3) {
                producer.flush();
                note("ask", txn(transaction) + ", \"commit\": true");
                untilDone(producer::commitTransaction);
                note("end", txn(transaction) + ", \"outcome\": \"committed\"");
            } else {
                abort(transaction);
            }
        } catch (ProducerFencedException | InvalidProducerEpochException | OutOfOrderSequenceException
                | AuthorizationException | FencedInstanceIdException error) {
            note("error", txn(transaction));
            throw error;
        } catch (KafkaException error) {
            System.out.println(transaction + ": " + error);
            note("error", txn(transaction));
            abort(transaction);
        }
    }

    private void abort(String transaction) {
        note("ask", txn(transaction) + ", \"commit\": false");
        untilDone(producer::abortTransaction);
        note("end", txn(transaction) + ", \"outcome\": \"aborted\"");
    }

    private void append(String transaction, int key) {
        long value = number++;
        note("append", txn(transaction) + ", \"key\": " + key + ", \"value\": " + value);
        producer.send(new ProducerRecord<>(topic, key, null, Long.toString(value)), (at, error) -> {
            if (error == null) {
                note("acked", ", \"value\": " + value + ", \"offset\": " + at.offset());
            }
        });
    }

    private void read(String transaction, int key) {
        TopicPartition place = new TopicPartition(topic, key);
        long start = readTo[key];
        StringBuilder records = new StringBuilder();
        long asked = System.nanoTime();
        long until = asked + 5_000_000_000L;
        try {
            consumer.assign(List.of(place));
            consumer.seek(place, start);
            long end = Math.max(consumer.endOffsets(Set.of(place)).get(place), start);
            while (consumer.position(place) < end) {
                if (System.nanoTime() > until) {
                    return;
                }
                for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(200))) {
                    if (each.offset() < end) {
                        records.append(records.length() == 0 ? "" : ", ");
                        records.append("[").append(each.offset()).append(", ").append(each.value()).append("]");
                    }
                }
            }
            String what = ", \"key\": " + key + ", \"start\": " + start + ", \"end\": " + end;
            what += ", \"asked\": " + asked;
            note("read", txn(transaction) + what + ", \"records\": [" + records + "]");
            readTo[key] = end;
        } catch (TimeoutException error) {
            return; // not read, then
        }
    }

    private void move(String transaction, int key) {
        moved++;
        note("moved", txn(transaction) + ", \"key\": " + key + ", \"offset\": " + moved);
        Map<TopicPartition, OffsetAndMetadata> places =
            Map.of(new TopicPartition(topic, key), new OffsetAndMetadata(moved));
        untilDone(() -> producer.sendOffsetsToTransaction(places, consumer.groupMetadata()));
    }

    private void untilDone(Runnable step) {
        while (true) {
            try {
                step.run();
                return;
            } catch (TimeoutException error) {
                if (ended) {
                    throw error;
                }
            }
        }
    }

    public static void main(String[] words) throws Exception {
        AppendClient client = new AppendClient(words);
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            client.ended = true;
            try {
                main.join(20_000);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        }));
        try {
            client.run();
        } catch (KafkaException error) {
            System.out.println(error);
            Runtime.getRuntime().halt(FENCED);
        }
        Runtime.getRuntime().halt(0);
    }
}
