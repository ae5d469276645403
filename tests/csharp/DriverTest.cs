// The C# driver, as an application uses it, against the built server (PANDO_BIN): classes mapped to documents, the fluent
// interfaces, LINQ, async. Each test has a database of its own, once on a direct connection and once on the replica set.

using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.IO;
using System.Linq;
using System.Net;
using System.Net.Sockets;
using System.Threading;
using System.Threading.Tasks;
using MongoDB.Bson;
using MongoDB.Bson.Serialization.Attributes;
using MongoDB.Driver;
using MongoDB.Driver.Linq;

public class Address
{
    public string City { get; set; }
    public int Zip { get; set; }
}

public class Person
{
    public ObjectId Id { get; set; }
    public string Name { get; set; }
    public int Age { get; set; }
    [BsonElement("tags")] public List<string> Tags { get; set; } = new List<string>();
    public Address Home { get; set; }
    [BsonIgnoreIfNull] public decimal? Worth { get; set; }
    [BsonDateTimeOptions(Kind = DateTimeKind.Utc)] public DateTime Born { get; set; }
}

public class DriverTest
{
    readonly IMongoDatabase db;
    readonly IMongoCollection<Person> people;
    readonly IMongoCollection<BsonDocument> things;

    DriverTest(IMongoClient client, string name)
    {
        db = client.GetDatabase(name);
        people = db.GetCollection<Person>("people");
        things = db.GetCollection<BsonDocument>("things");
    }

    static void Equal<T>(T expected, T actual)
    {
        if (!EqualityComparer<T>.Default.Equals(expected, actual)) throw new Exception($"expected {expected}, got {actual}");
    }

    static E Throws<E>(Action act) where E : Exception
    {
        try
        {
            act();
        }
        catch (E e)
        {
            return e;
        }
        throw new Exception($"no {typeof(E).Name}");
    }

    void Fill(int count)
    {
        things.InsertMany(Enumerable.Range(0, count).Select(i => new BsonDocument { { "_id", i }, { "n", i % 10 } }));
    }

    // The tests: every public method without arguments.

    public void ClassesAreDocuments()
    {
        var born = new DateTime(1990, 2, 3, 4, 5, 6, DateTimeKind.Utc);
        var ada = new Person { Name = "Ada", Age = 36, Tags = { "a", "b" }, Home = new Address { City = "London", Zip = 7 }, Born = born, Worth = 12.50m };
        people.InsertOne(ada);
        people.InsertMany(Enumerable.Range(0, 20).Select(i => new Person { Name = $"p{i}", Age = i, Born = born }));
        var found = people.Find(p => p.Home.City == "London" && p.Tags.Contains("b")).Single();
        Equal(ada.Id, found.Id);
        Equal(born, found.Born);
        Equal(12.50m, found.Worth.Value);
        var names = people.Find(p => p.Age >= 5 && p.Age < 30).SortByDescending(p => p.Age).Skip(1).Limit(2).Project(p => p.Name).ToList();
        Equal("p18,p17", string.Join(",", names));
        Equal(21L, people.CountDocuments(FilterDefinition<Person>.Empty));
        Equal(21L, people.EstimatedDocumentCount());
        Equal("a,b", string.Join(",", people.Distinct<string>("tags", "{}").ToList()));
    }

    public void Updates()
    {
        Fill(100);
        var b = Builders<BsonDocument>.Filter;
        var u = Builders<BsonDocument>.Update;
        Equal(10L, things.UpdateMany(b.Eq("n", 3), u.Set("x", 1).Inc("y", 2)).ModifiedCount);
        var upserted = things.UpdateOne(b.Eq("_id", "new"), u.SetOnInsert("n", -1).Push("list", 1), new UpdateOptions { IsUpsert = true });
        Equal("new", upserted.UpsertedId.AsString);
        Equal(1L, things.ReplaceOne(b.Eq("_id", 5), new BsonDocument("n", 55)).ModifiedCount);
        Equal(10L, things.DeleteMany(b.Eq("n", 4)).DeletedCount);
        var options = new FindOneAndUpdateOptions<BsonDocument> { ReturnDocument = ReturnDocument.After };
        Equal(56, things.FindOneAndUpdate(b.Eq("_id", 5), u.Inc("n", 1), options)["n"].AsInt32);
        Equal("new", things.FindOneAndDelete(b.Eq("_id", "new"))["_id"].AsString);
        var bulk = things.BulkWrite(new WriteModel<BsonDocument>[]
        {
            new InsertOneModel<BsonDocument>(new BsonDocument("_id", 1000)),
            new UpdateManyModel<BsonDocument>(b.Eq("n", 1), u.Set("z", true)),
            new DeleteOneModel<BsonDocument>(b.Eq("_id", 0)),
        }, new BulkWriteOptions { IsOrdered = false });
        Equal("1,10,1", $"{bulk.InsertedCount},{bulk.ModifiedCount},{bulk.DeletedCount}");
    }

    public void Errors()
    {
        things.InsertOne(new BsonDocument("_id", 1));
        var duplicate = Throws<MongoWriteException>(() => things.InsertOne(new BsonDocument("_id", 1)));
        Equal(ServerErrorCategory.DuplicateKey, duplicate.WriteError.Category);
        var many = Throws<MongoBulkWriteException<BsonDocument>>(() => things.InsertMany(
            new[] { new BsonDocument("_id", 2), new BsonDocument("_id", 1), new BsonDocument("_id", 3) }, new InsertManyOptions { IsOrdered = false }));
        Equal(2L, many.Result.InsertedCount);
        Equal(1, many.WriteErrors.Single().Index);
        Equal(59, Throws<MongoCommandException>(() => db.RunCommand<BsonDocument>("{ noSuchCommand: 1 }")).Code);
        Equal(3L, things.CountDocuments("{}"));
    }

    public void CursorsInBatches()
    {
        Fill(1000);
        using (var cursor = things.Find("{}", new FindOptions { BatchSize = 7 }).Sort("{ _id: -1 }").ToCursor())
        {
            var seen = new List<int>();
            while (cursor.MoveNext()) seen.AddRange(cursor.Current.Select(d => d["_id"].AsInt32));
            Equal(1000, seen.Count);
            Equal(999, seen[0]);
        }
        // One that is given up half-way.
        using (var cursor = things.Find("{}", new FindOptions { BatchSize = 2 }).ToCursor()) cursor.MoveNext();
    }

    public void Pipelines()
    {
        Fill(100);
        var groups = things.Aggregate(new AggregateOptions { BatchSize = 3 }).Match("{ n: { $gt: 4 } }")
            .Group(new BsonDocument { { "_id", "$n" }, { "sum", new BsonDocument("$sum", "$_id") } }).Sort("{ _id: 1 }").ToList();
        Equal(5, groups.Count);
        Equal(500, groups[0]["sum"].AsInt32);
        people.InsertMany(Enumerable.Range(0, 30).Select(i => new Person { Name = $"p{i}", Age = i % 3 }));
        var byAge = people.AsQueryable().Where(p => p.Age > 0).GroupBy(p => p.Age).Select(g => new { Age = g.Key, Count = g.Count() }).OrderBy(g => g.Age).ToList();
        Equal("1:10,2:10", string.Join(",", byAge.Select(g => $"{g.Age}:{g.Count}")));
        Equal(10, people.AsQueryable().Count(p => p.Age == 2));
    }

    public void Indexes()
    {
        Fill(50);
        var keys = Builders<BsonDocument>.IndexKeys.Ascending("n").Descending("m");
        Equal("n_1_m_-1", things.Indexes.CreateOne(new CreateIndexModel<BsonDocument>(keys)));
        things.Indexes.CreateOne(new CreateIndexModel<BsonDocument>("{ u: 1 }", new CreateIndexOptions { Unique = true, Sparse = true, Name = "only" }));
        Equal("_id_,n_1_m_-1,only", string.Join(",", things.Indexes.List().ToList().Select(i => i["name"].AsString).OrderBy(n => n)));
        things.InsertOne(new BsonDocument("u", 1));
        Throws<MongoWriteException>(() => things.InsertOne(new BsonDocument("u", 1)));
        things.Indexes.DropOne("only");
        Equal("things", db.ListCollectionNames().Single());
        db.RenameCollection("things", "renamed");
        Equal(51L, db.GetCollection<BsonDocument>("renamed").CountDocuments("{}"));
        db.DropCollection("renamed");
    }

    public void Concerns()
    {
        things.WithWriteConcern(WriteConcern.WMajority).InsertOne(new BsonDocument("_id", 1));
        things.WithWriteConcern(new WriteConcern(1, journal: true)).InsertOne(new BsonDocument("_id", 2));
        things.WithWriteConcern(WriteConcern.Unacknowledged).InsertOne(new BsonDocument("_id", 3));
        for (int i = 0; things.CountDocuments("{ _id: 3 }") == 0; i++)
        {
            if (i == 1000) throw new Exception("the unacknowledged write is nowhere");
            Thread.Sleep(10);
        }
        Equal(3L, things.WithReadConcern(ReadConcern.Majority).WithReadPreference(ReadPreference.SecondaryPreferred).CountDocuments("{}"));
        using (var session = db.Client.StartSession(new ClientSessionOptions { CausalConsistency = true }))
        {
            things.InsertOne(session, new BsonDocument("_id", 4));
            Equal(4L, things.CountDocuments(session, "{}"));
        }
    }

    public void Parallel()
    {
        Task.WaitAll(Enumerable.Range(0, 50).Select(async i =>
        {
            await things.InsertOneAsync(new BsonDocument { { "_id", i }, { "n", i } });
            await things.UpdateOneAsync(new BsonDocument("_id", i), "{ $inc: { n: 1 } }");
            var found = await (await things.FindAsync(new BsonDocument("_id", i))).SingleAsync();
            Equal(i + 1, found["n"].AsInt32);
        }).ToArray());
        Equal(50L, things.CountDocuments("{}"));
    }

    // The server, and the run.

    static int FreePort()
    {
        var probe = new TcpListener(IPAddress.Loopback, 0);
        probe.Start();
        try
        {
            return ((IPEndPoint)probe.LocalEndpoint).Port;
        }
        finally
        {
            probe.Stop();
        }
    }

    public static int Main()
    {
        var binary = Environment.GetEnvironmentVariable("PANDO_BIN") ?? "../../target/debug/pando";
        var directory = Path.Combine(Path.GetTempPath(), "pando-csharp-" + Guid.NewGuid());
        var port = FreePort();
        var arguments = $"serve --dbpath \"{directory}\" --port {port} --logpath \"{directory}.log\"";
        var server = Process.Start(new ProcessStartInfo(binary, arguments) { UseShellExecute = false, RedirectStandardOutput = true });
        server.StandardOutput.ReadToEndAsync();
        var failed = 0;
        try
        {
            foreach (var options in new[] { "connect=direct", "replicaSet=rs0&retryWrites=true" })
            {
                var client = new MongoClient($"mongodb://127.0.0.1:{port}/?serverSelectionTimeout=60s&{options}");
                client.GetDatabase("admin").RunCommand<BsonDocument>("{ ping: 1 }");
                var tests = typeof(DriverTest).GetMethods().Where(m => m.DeclaringType == typeof(DriverTest) && !m.IsStatic);
                foreach (var test in tests)
                {
                    var name = "csharp_" + test.Name;
                    client.DropDatabase(name);
                    var said = "ok";
                    try
                    {
                        test.Invoke(new DriverTest(client, name), null);
                    }
                    catch (Exception e)
                    {
                        failed++;
                        said = $"FAILED: {e.InnerException ?? e}";
                    }
                    Console.WriteLine($"{options} {test.Name} {said}");
                }
            }
        }
        finally
        {
            server.Kill();
            server.WaitForExit();
            Directory.Delete(directory, true);
            File.Delete(directory + ".log");
        }
        Console.WriteLine(failed == 0 ? "all passed" : $"{failed} FAILED");
        return failed == 0 ? 0 : 1;
    }
}
