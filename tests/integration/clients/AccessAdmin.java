import java.io.FileReader;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterClientQuotasOptions;
import org.apache.kafka.clients.admin.ScramCredentialInfo;
import org.apache.kafka.clients.admin.ScramMechanism;
import org.apache.kafka.clients.admin.UserScramCredentialDeletion;
import org.apache.kafka.clients.admin.UserScramCredentialUpsertion;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AccessControlEntryFilter;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.errors.ClusterAuthorizationException;
import org.apache.kafka.common.errors.ResourceNotFoundException;
import org.apache.kafka.common.errors.SaslAuthenticationException;
import org.apache.kafka.common.errors.TopicAuthorizationException;
import org.apache.kafka.common.errors.UnacceptableCredentialException;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.quota.ClientQuotaFilterComponent;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourcePatternFilter;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Usage: AccessAdmin ADMIN.properties TOPIC
 *
 * As an administrator, by Kafka's Admin: users and their SCRAM secrets, permissions, quotas; and what another user may then do. Says
 * "DONE" and a word for each part whose answers are those of Kafka. Leaves alice with her SHA-512 secret, one permission and a quota.
 */
public class AccessAdmin {
    private static final long LIMIT_MS = 30_000; // until each broker has applied a change
    private static final String PASSWORD = "of=alice, 7";
    private static final ClientQuotaEntity ALICE = new ClientQuotaEntity(Map.of(ClientQuotaEntity.USER, "alice"));

    private static Properties settings;
    private static String topic;

    public static void main(String[] arguments) throws Exception {
        settings = new Properties();
        try (FileReader reader = new FileReader(arguments[0])) {
            settings.load(reader);
        }
        topic = arguments[1];
        try (Admin admin = Admin.create(settings)) {
            users(admin);
            permissions(admin);
            quotas(admin);
            othersMayNot();
            secretsEnd(admin);
        }
        System.exit(0);
    }

    static void users(Admin admin) throws Exception {
        admin.alterUserScramCredentials(List.of(secret(ScramMechanism.SCRAM_SHA_256, 8192), secret(ScramMechanism.SCRAM_SHA_512, 4096)))
            .all().get();
        until("the secrets of alice", () -> {
            var found = admin.describeUserScramCredentials(List.of("alice")).description("alice").get();
            return Set.copyOf(found.credentialInfos()).equals(Set.of(
                new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192), new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)));
        });
        check(admin.describeUserScramCredentials().users().get().contains("alice"), "alice is listed");
        fails(ResourceNotFoundException.class, admin.describeUserScramCredentials(List.of("nobody")).description("nobody"));
        fails(UnacceptableCredentialException.class,
            admin.alterUserScramCredentials(List.of(secret(ScramMechanism.SCRAM_SHA_256, 100))).all());
        System.out.println("DONE users");
    }

    static void permissions(Admin admin) throws Exception {
        check(!mayWrite(), "without a permission");
        AclBinding write = acl(topic, PatternType.LITERAL, AclOperation.WRITE, AclPermissionType.ALLOW);
        AclBinding read = acl("log-", PatternType.PREFIXED, AclOperation.READ, AclPermissionType.ALLOW);
        AclBinding never = acl(topic, PatternType.LITERAL, AclOperation.WRITE, AclPermissionType.DENY);
        admin.createAcls(List.of(write, read)).all().get();
        until("both permissions", () -> Set.copyOf(described(admin, AclBindingFilter.ANY)).equals(Set.of(write, read)));
        until("alice may write", AccessAdmin::mayWrite);
        var matching = new ResourcePatternFilter(ResourceType.TOPIC, "log-7", PatternType.MATCH);
        check(described(admin, new AclBindingFilter(matching, AccessControlEntryFilter.ANY)).equals(List.of(read)), "matching");
        admin.createAcls(List.of(never)).all().get();
        until("a denial is stronger", () -> !mayWrite());
        var denials = new AclBindingFilter(
            ResourcePatternFilter.ANY,
            new AccessControlEntryFilter(null, null, AclOperation.ANY, AclPermissionType.DENY));
        var removed = admin.deleteAcls(List.of(denials, read.toFilter())).all().get();
        check(Set.copyOf(removed).equals(Set.of(never, read)), "what was removed: " + removed);
        until("alice may write again", AccessAdmin::mayWrite);
        System.out.println("DONE permissions");
    }

    static void quotas(Admin admin) throws Exception {
        var all = new ClientQuotaEntity(java.util.Collections.singletonMap(ClientQuotaEntity.USER, null));
        admin.alterClientQuotas(List.of(
            alteration(ALICE, "producer_byte_rate", 1_000_000.0), alteration(ALICE, "consumer_byte_rate", 5_000.0),
            alteration(all, "request_percentage", 200.0))).all().get();
        var ofAlice = ClientQuotaFilter.contains(List.of(ClientQuotaFilterComponent.ofEntity(ClientQuotaEntity.USER, "alice")));
        until("the quotas of alice", () -> admin.describeClientQuotas(ofAlice).entities().get()
            .equals(Map.of(ALICE, Map.of("producer_byte_rate", 1_000_000.0, "consumer_byte_rate", 5_000.0))));
        until("both entities", () -> admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get().keySet()
            .equals(Set.of(ALICE, all)));
        admin.alterClientQuotas(
            List.of(alteration(ALICE, "producer_byte_rate", 1.0)), new AlterClientQuotasOptions().validateOnly(true)).all().get();
        admin.alterClientQuotas(List.of(
            alteration(ALICE, "consumer_byte_rate", null), alteration(all, "request_percentage", null))).all().get();
        until("what is left", () -> admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get()
            .equals(Map.of(ALICE, Map.of("producer_byte_rate", 1_000_000.0))));
        System.out.println("DONE quotas");
    }

    static void othersMayNot() throws Exception {
        try (Admin alice = Admin.create(ofAlice(ScramMechanism.SCRAM_SHA_256))) {
            AclBinding mine = acl("*", PatternType.LITERAL, AclOperation.ALL, AclPermissionType.ALLOW);
            fails(ClusterAuthorizationException.class, alice.createAcls(List.of(mine)).all());
            fails(ClusterAuthorizationException.class, alice.describeAcls(AclBindingFilter.ANY).values());
            fails(ClusterAuthorizationException.class, alice.deleteAcls(List.of(AclBindingFilter.ANY)).all());
            fails(ClusterAuthorizationException.class,
                alice.alterUserScramCredentials(List.of(secret(ScramMechanism.SCRAM_SHA_512, 4096))).all());
            fails(ClusterAuthorizationException.class, alice.describeUserScramCredentials().all());
            fails(ClusterAuthorizationException.class, alice.alterClientQuotas(List.of(alteration(ALICE, "producer_byte_rate", null))).all());
            fails(ClusterAuthorizationException.class, alice.describeClientQuotas(ClientQuotaFilter.all()).entities());
        }
        System.out.println("DONE others");
    }

    static void secretsEnd(Admin admin) throws Exception {
        var gone = new UserScramCredentialDeletion("alice", ScramMechanism.SCRAM_SHA_256);
        admin.alterUserScramCredentials(List.of(gone)).all().get();
        until("her login by it is refused", () -> {
            try (Admin alice = Admin.create(ofAlice(ScramMechanism.SCRAM_SHA_256))) {
                return fails(SaslAuthenticationException.class, alice.describeCluster().clusterId());
            }
        });
        try (Admin alice = Admin.create(ofAlice(ScramMechanism.SCRAM_SHA_512))) {
            alice.describeCluster().clusterId().get();
        }
        fails(ResourceNotFoundException.class, admin.alterUserScramCredentials(List.of(gone)).all());
        System.out.println("DONE secrets");
    }

    // --- words of the above ---

    static UserScramCredentialUpsertion secret(ScramMechanism mechanism, int iterations) {
        return new UserScramCredentialUpsertion("alice", new ScramCredentialInfo(mechanism, iterations), PASSWORD);
    }

    static AclBinding acl(String name, PatternType pattern, AclOperation operation, AclPermissionType permission) {
        var entry = new AccessControlEntry("User:alice", "*", operation, permission);
        return new AclBinding(new ResourcePattern(ResourceType.TOPIC, name, pattern), entry);
    }

    static List<AclBinding> described(Admin admin, AclBindingFilter filter) throws Exception {
        return List.copyOf(admin.describeAcls(filter).values().get());
    }

    static ClientQuotaAlteration alteration(ClientQuotaEntity entity, String key, Double value) {
        return new ClientQuotaAlteration(entity, List.of(new ClientQuotaAlteration.Op(key, value)));
    }

    static Properties ofAlice(ScramMechanism mechanism) {
        Properties made = new Properties();
        made.putAll(settings);
        made.put("sasl.mechanism", mechanism.mechanismName());
        made.put("sasl.jaas.config", "org.apache.kafka.common.security.scram.ScramLoginModule required username=\"alice\" password=\""
            + PASSWORD + "\";");
        return made;
    }

    static boolean mayWrite() throws Exception {
        Properties made = ofAlice(ScramMechanism.SCRAM_SHA_256);
        made.put("enable.idempotence", "false");
        try (var producer = new KafkaProducer<>(made, new StringSerializer(), new StringSerializer())) {
            producer.send(new ProducerRecord<>(topic, "of alice")).get();
            return true;
        } catch (ExecutionException error) {
            if (error.getCause() instanceof TopicAuthorizationException) {
                return false;
            }
            throw error;
        }
    }

    static boolean fails(Class<? extends Exception> wanted, KafkaFuture<?> answer) throws Exception {
        try {
            answer.get();
        } catch (ExecutionException error) {
            if (wanted.isInstance(error.getCause())) {
                return true;
            }
            throw error;
        }
        if (wanted == SaslAuthenticationException.class) {
            return false;
        }
        throw new AssertionError("not refused with " + wanted.getSimpleName());
    }

    static void until(String what, Callable<Boolean> condition) throws Exception {
        for (long end = System.currentTimeMillis() + LIMIT_MS; !condition.call(); Thread.sleep(20)) {
            check(System.currentTimeMillis() < end, "not in time: " + what);
        }
    }

    static void check(boolean isTrue, String what) {
        if (!isTrue) {
            throw new AssertionError(what);
        }
    }
}
