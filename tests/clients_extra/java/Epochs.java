import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.AlterPartitionRequestData;
import org.apache.kafka.common.message.FetchRequestData;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.MessageUtil;

/**
 * Reads and writes epochs of registrations as Apache Kafka's brokers do. Each line asks one thing:
 * `fetch VERSION HEX` and `alter VERSION HEX` who is named with which epochs, `write VERSION ID EPOCH` for a fetch.
 */
public class Epochs {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            short version = Short.parseShort(words[1]);
            System.out.println(switch (words[0]) {
                case "fetch" -> fetch(read(words[2]), version);
                case "alter" -> alter(read(words[2]), version);
                default -> write(version, Integer.parseInt(words[2]), Long.parseLong(words[3]));
            });
        }
    }

    private static ByteBufferAccessor read(String hex) {
        return new ByteBufferAccessor(ByteBuffer.wrap(HexFormat.of().parseHex(hex)));
    }

    private static String fetch(ByteBufferAccessor data, short version) {
        FetchRequestData request = new FetchRequestData(data, version);
        return request.replicaState().replicaId() + ":" + request.replicaState().replicaEpoch() + " "
            + data.remaining();
    }

    private static String alter(ByteBufferAccessor data, short version) {
        AlterPartitionRequestData request = new AlterPartitionRequestData(data, version);
        return request.brokerId() + ":" + request.brokerEpoch() + request.topics().stream()
            .flatMap(topic -> topic.partitions().stream())
            .flatMap(partition -> partition.newIsrWithEpochs().stream())
            .map(member -> " " + member.brokerId() + ":" + member.brokerEpoch())
            .collect(Collectors.joining()) + " " + data.remaining();
    }

    private static String write(short version, int id, long epoch) {
        FetchRequestData request = new FetchRequestData()
            .setReplicaState(new FetchRequestData.ReplicaState().setReplicaId(id).setReplicaEpoch(epoch))
            .setTopics(List.of(new FetchRequestData.FetchTopic().setTopicId(new Uuid(1, 2)).setPartitions(
                List.of(new FetchRequestData.FetchPartition().setPartition(3).setFetchOffset(4)))));
        ByteBuffer data = MessageUtil.toByteBufferAccessor(request, version).buffer();
        byte[] bytes = new byte[data.remaining()];
        data.get(bytes);
        return HexFormat.of().formatHex(bytes);
    }
}
