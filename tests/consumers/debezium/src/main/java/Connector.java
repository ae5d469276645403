import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/**
 * Debezium's MongoDB connector: prints each event as one line of JSON, until its standard input ends.
 * Arguments: the server's URI, the file that keeps offsets, the capture mode.
 */
public class Connector {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.setProperty("name", "engine");
        properties.setProperty("connector.class", "io.debezium.connector.mongodb.MongoDbConnector");
        properties.setProperty("offset.storage", "org.apache.kafka.connect.storage.FileOffsetBackingStore");
        properties.setProperty("offset.storage.file.filename", arguments[1]);
        properties.setProperty("offset.flush.interval.ms", "0");
        properties.setProperty("mongodb.connection.string", arguments[0]);
        properties.setProperty("topic.prefix", "consumer");
        properties.setProperty("database.include.list", "shop");
        properties.setProperty("capture.mode", arguments[2]);
        properties.setProperty("key.converter.schemas.enable", "false");
        properties.setProperty("value.converter.schemas.enable", "false");
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class)
                .using(properties)
                .using((success, message, error) -> {
                    if (!success) {
                        System.err.println("the engine ended: " + message);
                    }
                })
                .notifying(event -> {
                    if (event.value() != null) {
                        System.out.println(event.value());
                    }
                })
                .build();
        ExecutorService runner = Executors.newSingleThreadExecutor();
        runner.execute(engine);
        while (System.in.read() >= 0) {
            // Whoever started this closes its standard input to end it.
        }
        engine.close();
        runner.shutdown();
        runner.awaitTermination(30, TimeUnit.SECONDS);
    }
}
