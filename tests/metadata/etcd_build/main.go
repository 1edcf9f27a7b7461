// An etcd, built from its module: what `make test-etcd` runs the metadata contract on.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
