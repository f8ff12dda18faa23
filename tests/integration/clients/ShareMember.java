import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.config.ConfigResource;

/**
 * A member of a share group: ShareMember BOOTSTRAP GROUP TOPIC POLICY COUNT [KEY=VALUE ...]
 *
 * Prints "TIME got PARTITION OFFSET DELIVERIES VALUE" for each record, and "TIME acked PARTITION OFFSET TYPE" once its
 * acknowledgement is answered without an error. It ends after COUNT such answers, or when it is killed. KEY=VALUE are configurations of the group,
 * which are set first. Policies: accept, release-first (each record once), reject-odd (odd values), hold (nothing is acknowledged).
 */
public class ShareMember {
    public static void main(String[] args) throws Exception {
        String group = args[1], topic = args[2], policy = args[3];
        int count = Integer.parseInt(args[4]);
        Properties properties = new Properties();
        properties.put("bootstrap.servers", args[0]);
        configure(properties, group, args);
        properties.put("group.id", group);
        properties.put("share.acknowledgement.mode", "explicit");
        properties.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        properties.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(properties)) {
            consumer.subscribe(List.of(topic));
            say("ready");
            int acknowledged = 0;
            while (acknowledged < count) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                List<String> pending = new ArrayList<>();
                for (ConsumerRecord<String, String> record : records) {
                    short deliveries = record.deliveryCount().orElse((short) 0);
                    say("got " + record.partition() + " " + record.offset() + " " + deliveries + " " + record.value());
                    AcknowledgeType type = choose(policy, record.value(), deliveries);
                    if (type == null) continue;
                    consumer.acknowledge(record, type);
                    pending.add(record.partition() + " " + record.offset() + " " + type.toString().toLowerCase());
                }
                if (policy.equals("hold") && !records.isEmpty()) Thread.sleep(Long.MAX_VALUE);
                if (pending.isEmpty()) continue;
                acknowledged += told(consumer.commitSync(Duration.ofSeconds(60)), pending);
            }
        }
        say("closed");
    }

    static void say(String text) {
        System.out.println(System.currentTimeMillis() + " " + text);
    }

    static int told(Map<TopicIdPartition, Optional<KafkaException>> answers, List<String> pending) {
        int found = 0;
        for (Map.Entry<TopicIdPartition, Optional<KafkaException>> answer : answers.entrySet()) {
            if (answer.getValue().isPresent()) {
                say("refused " + answer.getKey().partition() + " " + answer.getValue().get());
                continue;
            }
            for (String item : pending) {
                if (item.startsWith(answer.getKey().partition() + " ")) {
                    say("acked " + item);
                    found++;
                }
            }
        }
        return found;
    }

    static AcknowledgeType choose(String policy, String value, short deliveries) {
        switch (policy) {
            case "accept": return AcknowledgeType.ACCEPT;
            case "release": return AcknowledgeType.RELEASE;
            case "release-first": return deliveries == 1 ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT;
            case "reject-odd": return Integer.parseInt(value) % 2 == 1 ? AcknowledgeType.REJECT : AcknowledgeType.ACCEPT;
            default: return null;
        }
    }

    static void configure(Properties properties, String group, String[] args) throws Exception {
        List<AlterConfigOp> changes = new ArrayList<>();
        for (int i = 5; i < args.length; i++) {
            String[] parts = args[i].split("=", 2);
            changes.add(new AlterConfigOp(new ConfigEntry(parts[0], parts[1]), AlterConfigOp.OpType.SET));
        }
        if (changes.isEmpty()) return;
        try (Admin admin = Admin.create(properties)) {
            admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.GROUP, group), changes)).all().get();
        }
    }
}
