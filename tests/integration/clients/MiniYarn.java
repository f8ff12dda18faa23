import java.io.FileOutputStream;
import java.io.OutputStream;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/** A real YARN in one JVM on loopback: a resource manager and a node manager. Writes its settings into FOLDER/yarn-site.xml. */
public final class MiniYarn {
    public static void main(String[] arguments) throws Exception {
        YarnConfiguration settings = new YarnConfiguration();
        settings.set("yarn.nodemanager.resource.memory-mb", "4096");
        settings.setBoolean("yarn.nodemanager.pmem-check-enabled", false);
        settings.setBoolean("yarn.nodemanager.vmem-check-enabled", false);
        settings.set("yarn.scheduler.capacity.root.queues", "default");
        settings.set("yarn.scheduler.capacity.root.default.capacity", "100");
        settings.set("yarn.scheduler.capacity.maximum-am-resource-percent", "0.9");
        settings.setInt("yarn.scheduler.minimum-allocation-mb", 256);
        settings.set("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", "99.9");
        settings.set("yarn.nodemanager.delete.debug-delay-sec", "600");
        settings.set("hadoop.tmp.dir", arguments[0] + "/tmp");
        MiniYARNCluster cluster = new MiniYARNCluster("barnabas", 1, 1, 1);
        cluster.init(settings);
        cluster.start();
        if (!cluster.waitForNodeManagersToConnect(120_000)) {
            throw new IllegalStateException("no node manager");
        }
        try (OutputStream file = new FileOutputStream(arguments[0] + "/yarn-site.xml")) {
            cluster.getConfig().writeXml(file);
        }
        System.out.println("ready");
        System.out.flush();
        System.in.read(); // ends with the process that started it
        System.exit(0);
    }
}
