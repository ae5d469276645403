package drivertests

import (
	"testing"
	"time"

	"github.com/globalsign/mgo"
	mgobson "github.com/globalsign/mgo/bson"
)

// mgo, the driver of old Go applications: it speaks in OP_QUERY and asks for a nonce on every connection.
func TestMgo(t *testing.T) {
	address := serve(t)
	for _, uri := range []string{"mongodb://" + address + "/?connect=direct", "mongodb://" + address + "/?replicaSet=rs0"} {
		t.Run(uri[len("mongodb://"+address):], func(t *testing.T) {
			session, err := mgo.DialWithTimeout(uri, 60*time.Second)
			check(t, err)
			defer session.Close()
			check(t, session.DB("mgo").DropDatabase())
			things := session.DB("mgo").C("things")
			var all []any
			for i := 0; i < 1000; i++ {
				all = append(all, mgobson.M{"_id": i, "n": i, "g": i % 7})
			}
			check(t, things.Insert(all...))
			var found []mgobson.M
			check(t, things.Find(mgobson.M{"g": 3}).Sort("-n").Limit(2).All(&found))
			if len(found) != 2 || found[0]["_id"] != 997 {
				t.Fatal(found)
			}
			check(t, things.Find(nil).Batch(300).All(&found))
			if len(found) != 1000 {
				t.Fatal(len(found))
			}
			updated, err := things.UpdateAll(mgobson.M{"g": 1}, mgobson.M{"$set": mgobson.M{"z": 1}})
			check(t, err)
			upserted, err := things.UpsertId("new", mgobson.M{"$set": mgobson.M{"z": 1}})
			check(t, err)
			removed, err := things.RemoveAll(mgobson.M{"g": 2})
			check(t, err)
			if updated.Updated != 143 || upserted.UpsertedId != "new" || removed.Removed != 143 {
				t.Fatal(updated, upserted, removed)
			}
			check(t, things.EnsureIndex(mgo.Index{Key: []string{"g", "-n"}}))
			if indexes, err := things.Indexes(); err != nil || len(indexes) != 2 {
				t.Fatal(indexes, err)
			}
			pipe := things.Pipe([]mgobson.M{{"$group": mgobson.M{"_id": "$g", "n": mgobson.M{"$sum": 1}}}})
			check(t, pipe.Batch(2).All(&found))
			if len(found) != 7 {
				t.Fatal(found)
			}
			var after mgobson.M
			_, err = things.FindId(5).Apply(mgo.Change{Update: mgobson.M{"$inc": mgobson.M{"n": 1}}, ReturnNew: true}, &after)
			check(t, err)
			if after["n"] != 6 {
				t.Fatal(after)
			}
			if n, err := things.Find(mgobson.M{"g": 3}).Count(); err != nil || n != 143 {
				t.Fatal(n, err)
			}
			if err := things.Insert(mgobson.M{"_id": 5}); !mgo.IsDup(err) {
				t.Fatal(err)
			}
		})
	}
}
