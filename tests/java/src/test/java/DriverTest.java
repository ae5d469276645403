import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.mongodb.MongoCommandException;
import com.mongodb.MongoWriteException;
import com.mongodb.client.ClientSession;
import com.mongodb.client.MongoChangeStreamCursor;
import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoClients;
import com.mongodb.client.MongoCollection;
import com.mongodb.client.model.Aggregates;
import com.mongodb.client.model.Accumulators;
import com.mongodb.client.model.Filters;
import com.mongodb.client.model.FindOneAndUpdateOptions;
import com.mongodb.client.model.IndexOptions;
import com.mongodb.client.model.Indexes;
import com.mongodb.client.model.ReturnDocument;
import com.mongodb.client.model.Sorts;
import com.mongodb.client.model.UpdateOptions;
import com.mongodb.client.model.Updates;
import com.mongodb.client.model.changestream.ChangeStreamDocument;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.bson.BsonDocument;
import org.bson.Document;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The Java driver, as an application uses it, against the built server (PANDO_BIN). */
class DriverTest {
    @TempDir static Path directory;
    static Process server;
    static MongoClient client;
    MongoCollection<Document> things;

    @BeforeAll
    static void start() throws Exception {
        int port;
        try (ServerSocket probe = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            port = probe.getLocalPort();
        }
        String binary = System.getenv().getOrDefault("PANDO_BIN", "../../target/debug/pando");
        server = new ProcessBuilder(binary, "serve", "--dbpath", directory.resolve("data").toString(), "--port", "" + port)
                .redirectErrorStream(true)
                .redirectOutput(directory.resolve("log").toFile())
                .start();
        client = MongoClients.create("mongodb://127.0.0.1:" + port + "/?serverSelectionTimeoutMS=30000");
        client.getDatabase("admin").runCommand(new Document("ping", 1));
    }

    @AfterAll
    static void stop() throws Exception {
        client.close();
        server.destroy();
        assertTrue(server.waitFor(30, TimeUnit.SECONDS), "the server does not end");
    }

    @BeforeEach
    void empty() {
        things = client.getDatabase("java").getCollection("things");
        things.drop();
    }

    static List<Document> numbers(int count) {
        return IntStream.range(0, count).mapToObj(i -> new Document("_id", i).append("n", i % 10)).collect(Collectors.toList());
    }

    @Test
    void documents() {
        assertEquals(300, things.insertMany(numbers(300)).getInsertedIds().size());
        List<Document> found = things.find(Filters.eq("n", 3)).sort(Sorts.descending("_id")).batchSize(7).into(new ArrayList<>());
        assertEquals(30, found.size());
        assertEquals(293, found.get(0).getInteger("_id"));
        assertEquals(30, things.updateMany(Filters.eq("n", 3), Updates.inc("n", 100)).getModifiedCount());
        assertEquals("new", things.updateOne(Filters.eq("_id", "new"), Updates.set("x", 1), new UpdateOptions().upsert(true))
                .getUpsertedId().asString().getValue());
        Document after = things.findOneAndUpdate(Filters.eq("_id", "new"), Updates.push("l", 5),
                new FindOneAndUpdateOptions().returnDocument(ReturnDocument.AFTER));
        assertEquals(List.of(5), after.getList("l", Integer.class));
        assertEquals(301, things.countDocuments());
        assertEquals(301, things.deleteMany(new Document()).getDeletedCount());
    }

    @Test
    void errors() {
        things.insertOne(new Document("_id", 1));
        assertEquals(11000, assertThrows(MongoWriteException.class, () -> things.insertOne(new Document("_id", 1))).getCode());
        MongoCommandException unknown = assertThrows(MongoCommandException.class,
                () -> client.getDatabase("java").runCommand(new Document("nope", 1)));
        assertEquals(59, unknown.getErrorCode());
        assertEquals("CommandNotFound", unknown.getErrorCodeName());
    }

    @Test
    void indexesAndAggregation() {
        assertEquals("k_1", things.createIndex(Indexes.ascending("k"), new IndexOptions().unique(true)));
        for (int i = 0; i < 10; i++) {
            things.insertOne(new Document("k", i).append("g", i % 2));
        }
        List<Document> sums = things.aggregate(List.of(
                Aggregates.group("$g", Accumulators.sum("sum", "$k")), Aggregates.sort(Sorts.ascending("_id")))).into(new ArrayList<>());
        assertEquals(List.of(20, 25), sums.stream().map(d -> d.getInteger("sum")).collect(Collectors.toList()));
    }

    @Test
    void sessions() {
        try (ClientSession session = client.startSession()) {
            things.insertOne(session, new Document("_id", "s"));
            assertEquals("s", things.find(session).first().getString("_id"));
        }
    }

    void transfer(MongoCollection<Document> others) {
        try (ClientSession session = client.startSession()) {
            session.withTransaction(() -> {
                int n = things.find(session, Filters.eq("_id", "a")).first().getInteger("n");
                things.updateOne(session, Filters.eq("_id", "a"), Updates.set("n", n - 1));
                return others.updateOne(session, Filters.eq("_id", "b"), Updates.inc("n", 1));
            });
        }
    }

    /** Eight transfer at once: drivers repeat what conflicted. */
    @Test
    void withTransaction() throws Exception {
        MongoCollection<Document> others = client.getDatabase("java_other").getCollection("accounts");
        others.drop();
        things.insertOne(new Document("_id", "a").append("n", 100));
        others.insertOne(new Document("_id", "b").append("n", 0));
        ExecutorService threads = Executors.newFixedThreadPool(8);
        List<Future<?>> transfers = new ArrayList<>();
        for (int i = 0; i < 8; i++) {
            transfers.add(threads.submit(() -> transfer(others)));
        }
        for (Future<?> transfer : transfers) {
            transfer.get(60, TimeUnit.SECONDS);
        }
        threads.shutdown();
        assertEquals(92, things.find(Filters.eq("_id", "a")).first().getInteger("n"));
        assertEquals(8, others.find(Filters.eq("_id", "b")).first().getInteger("n"));
        try (ClientSession session = client.startSession()) {
            assertThrows(IllegalStateException.class, () -> session.withTransaction(() -> {
                things.insertOne(session, new Document("_id", "never"));
                throw new IllegalStateException("mine");
            }));
        }
        assertEquals(0, things.countDocuments(Filters.eq("_id", "never")));
    }

    @Test
    void changeStream() {
        client.getDatabase("java").createCollection("things");
        BsonDocument token;
        try (MongoChangeStreamCursor<ChangeStreamDocument<Document>> stream = things.watch().cursor()) {
            things.insertMany(numbers(3));
            assertEquals(0, stream.next().getFullDocument().getInteger("_id"));
            token = stream.getResumeToken();
        }
        try (MongoChangeStreamCursor<ChangeStreamDocument<Document>> stream = things.watch().resumeAfter(token).cursor()) {
            assertEquals(1, stream.next().getFullDocument().getInteger("_id"));
            assertEquals(2, stream.next().getFullDocument().getInteger("_id"));
        }
    }
}
