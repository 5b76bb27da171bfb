import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.DescribeReplicaLogDirsResult.ReplicaLogDirInfo;
import org.apache.kafka.common.TopicPartitionReplica;

/** Moves a replica to another data directory, and prints where it is until it is there. */
public class MoveReplica {
    public static void main(String[] arguments) throws Exception {
        TopicPartitionReplica replica = new TopicPartitionReplica(arguments[1], 0, Integer.parseInt(arguments[2]));
        String target = arguments[3];
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", arguments[0]))) {
            admin.alterReplicaLogDirs(Map.of(replica, target)).all().get();
            while (true) {
                ReplicaLogDirInfo told = admin.describeReplicaLogDirs(List.of(replica)).all().get().get(replica);
                System.out.println(told.getCurrentReplicaLogDir() + " " + told.getFutureReplicaLogDir() + " "
                    + told.getFutureReplicaOffsetLag());
                if (target.equals(told.getCurrentReplicaLogDir())) {
                    return;
                }
                Thread.sleep(100);
            }
        }
    }
}
