// Package drivertests runs the Go driver, as an application uses it, against the built server (PANDO_BIN).
package drivertests

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// serve gives the address of a server that ends with the test.
func serve(t *testing.T, more ...string) string {
	t.Helper()
	binary := os.Getenv("PANDO_BIN")
	if binary == "" {
		binary = "../../target/debug/pando"
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	address := listener.Addr().String()
	listener.Close()
	_, port, _ := net.SplitHostPort(address)
	arguments := append([]string{"serve", "--dbpath", filepath.Join(t.TempDir(), "data"), "--port", port}, more...)
	server := exec.Command(binary, arguments...)
	check(t, server.Start())
	t.Cleanup(func() {
		server.Process.Kill()
		server.Wait()
	})
	return address
}

// start gives a collection of such a server.
func start(t *testing.T) *mongo.Collection {
	t.Helper()
	address := serve(t)
	client, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + address).SetServerSelectionTimeout(30 * time.Second))
	check(t, err)
	t.Cleanup(func() { client.Disconnect(context.Background()) })
	deadline := time.Now().Add(60 * time.Second)
	for client.Ping(context.Background(), nil) != nil {
		if time.Now().After(deadline) {
			t.Fatal("the server does not answer")
		}
	}
	return client.Database("golang").Collection("things")
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestDocuments(t *testing.T) {
	things, ctx := start(t), context.Background()
	var documents []any
	for i := 0; i < 300; i++ {
		documents = append(documents, bson.D{{Key: "_id", Value: i}, {Key: "n", Value: int64(i % 10)}})
	}
	inserted, err := things.InsertMany(ctx, documents)
	check(t, err)
	if len(inserted.InsertedIDs) != 300 {
		t.Fatal(inserted)
	}
	cursor, err := things.Find(ctx, bson.M{"n": 3}, options.Find().SetSort(bson.D{{Key: "_id", Value: -1}}).SetBatchSize(7))
	check(t, err)
	var found []bson.M
	check(t, cursor.All(ctx, &found))
	if len(found) != 30 || found[0]["_id"] != int32(293) {
		t.Fatal(len(found), found[0])
	}
	updated, err := things.UpdateMany(ctx, bson.M{"n": 3}, bson.M{"$inc": bson.M{"n": 100}})
	check(t, err)
	if updated.ModifiedCount != 30 {
		t.Fatal(updated)
	}
	var after bson.M
	check(t, things.FindOneAndUpdate(ctx, bson.M{"_id": "new"}, bson.M{"$set": bson.M{"x": 1}},
		options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Decode(&after))
	if after["x"] != int32(1) {
		t.Fatal(after)
	}
	count, err := things.CountDocuments(ctx, bson.M{})
	check(t, err)
	if count != 301 {
		t.Fatal(count)
	}
}

func TestErrors(t *testing.T) {
	things, ctx := start(t), context.Background()
	_, err := things.InsertOne(ctx, bson.M{"_id": 1})
	check(t, err)
	if _, err = things.InsertOne(ctx, bson.M{"_id": 1}); !mongo.IsDuplicateKeyError(err) {
		t.Fatal(err)
	}
	err = things.Database().RunCommand(ctx, bson.D{{Key: "nope", Value: 1}}).Err()
	if command, ok := err.(mongo.CommandError); !ok || command.Code != 59 || command.Name != "CommandNotFound" {
		t.Fatal(err)
	}
}

func TestIndexesAndAggregation(t *testing.T) {
	things, ctx := start(t), context.Background()
	name, err := things.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "k", Value: 1}}, Options: options.Index().SetUnique(true)})
	check(t, err)
	if name != "k_1" {
		t.Fatal(name)
	}
	for i := 0; i < 10; i++ {
		_, err := things.InsertOne(ctx, bson.M{"k": i, "g": i % 2})
		check(t, err)
	}
	cursor, err := things.Aggregate(ctx, mongo.Pipeline{
		{{Key: "$group", Value: bson.M{"_id": "$g", "sum": bson.M{"$sum": "$k"}}}},
		{{Key: "$sort", Value: bson.M{"_id": 1}}},
	})
	check(t, err)
	var sums []bson.M
	check(t, cursor.All(ctx, &sums))
	if fmt.Sprint(sums[0]["sum"], sums[1]["sum"]) != "20 25" {
		t.Fatal(sums)
	}
}

// Eight transfer at once: drivers repeat what conflicted.
func TestWithTransaction(t *testing.T) {
	things, ctx := start(t), context.Background()
	client := things.Database().Client()
	others := client.Database("golang_other").Collection("accounts")
	_, err := things.InsertOne(ctx, bson.M{"_id": "a", "n": 100})
	check(t, err)
	_, err = others.InsertOne(ctx, bson.M{"_id": "b", "n": 0})
	check(t, err)
	transfer := func(ctx context.Context) (any, error) {
		var from struct{ N int }
		if err := things.FindOne(ctx, bson.M{"_id": "a"}).Decode(&from); err != nil {
			return nil, err
		}
		if _, err := things.UpdateOne(ctx, bson.M{"_id": "a"}, bson.M{"$set": bson.M{"n": from.N - 1}}); err != nil {
			return nil, err
		}
		return others.UpdateOne(ctx, bson.M{"_id": "b"}, bson.M{"$inc": bson.M{"n": 1}})
	}
	results := make(chan error)
	for i := 0; i < 8; i++ {
		go func() {
			results <- client.UseSession(ctx, func(ctx context.Context) error {
				_, err := mongo.SessionFromContext(ctx).WithTransaction(ctx, transfer)
				return err
			})
		}()
	}
	for i := 0; i < 8; i++ {
		check(t, <-results)
	}
	count, err := things.CountDocuments(ctx, bson.M{"_id": "a", "n": 92})
	check(t, err)
	other, err := others.CountDocuments(ctx, bson.M{"_id": "b", "n": 8})
	check(t, err)
	if count != 1 || other != 1 {
		t.Fatal(count, other)
	}
	mine := fmt.Errorf("mine")
	err = client.UseSession(ctx, func(ctx context.Context) error {
		_, err := mongo.SessionFromContext(ctx).WithTransaction(ctx, func(ctx context.Context) (any, error) {
			_, err := things.InsertOne(ctx, bson.M{"_id": "never"})
			check(t, err)
			return nil, mine
		})
		return err
	})
	if err != mine {
		t.Fatal(err)
	}
	if count, err = things.CountDocuments(ctx, bson.M{"_id": "never"}); err != nil || count != 0 {
		t.Fatal(count, err)
	}
}

func TestChangeStream(t *testing.T) {
	things, ctx := start(t), context.Background()
	stream, err := things.Watch(ctx, mongo.Pipeline{})
	check(t, err)
	for i := 0; i < 3; i++ {
		_, err = things.InsertOne(ctx, bson.M{"_id": i})
		check(t, err)
	}
	var event struct {
		OperationType string
		DocumentKey   struct {
			ID int `bson:"_id"`
		} `bson:"documentKey"`
	}
	next := func(stream *mongo.ChangeStream, id int) {
		t.Helper()
		if !stream.Next(ctx) {
			t.Fatal(stream.Err())
		}
		check(t, stream.Decode(&event))
		if event.OperationType != "insert" || event.DocumentKey.ID != id {
			t.Fatal(event)
		}
	}
	next(stream, 0)
	token := stream.ResumeToken()
	check(t, stream.Close(ctx))
	resumed, err := things.Watch(ctx, mongo.Pipeline{}, options.ChangeStream().SetResumeAfter(token))
	check(t, err)
	next(resumed, 1)
	next(resumed, 2)
	check(t, resumed.Close(ctx))
}
