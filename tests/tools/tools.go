//go:build tools

// Package tools pins MongoDB's database tools, which tests/python/test_tools.py runs; scripts/test.sh builds them.
package tools

import (
	_ "github.com/mongodb/mongo-tools/bsondump/main"
	_ "github.com/mongodb/mongo-tools/mongodump/main"
	_ "github.com/mongodb/mongo-tools/mongoexport/main"
	_ "github.com/mongodb/mongo-tools/mongofiles/main"
	_ "github.com/mongodb/mongo-tools/mongoimport/main"
	_ "github.com/mongodb/mongo-tools/mongorestore/main"
	_ "github.com/mongodb/mongo-tools/mongostat/main"
	_ "github.com/mongodb/mongo-tools/mongotop/main"
)
