// A client on arrow-go: it puts three batches, reads them back, and acknowledges them in a subscription.
//
//	client HOST:PORT SLOT
//
// It prints one line for each acknowledgement, the number of rows, and one line for each delivered bundle.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	ctx := context.Background()
	client, err := flight.NewClientWithMiddleware(os.Args[1], nil, nil, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(err)
	schema := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	b.Field(0).(*array.Int64Builder).AppendValues([]int64{1, 2, 3}, nil)
	rec := b.NewRecord()
	put, err := client.DoPut(ctx)
	must(err)
	w := flight.NewRecordWriter(put, ipc.WithSchema(schema))
	w.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{os.Args[2]}})
	for n := 0; n < 3; n++ {
		must(w.WriteWithAppMetadata(rec, []byte(fmt.Sprintf(`{"sequence": %d}`, 7+n))))
	}
	must(put.CloseSend())
	for {
		ack, err := put.Recv()
		if err == io.EOF {
			break
		}
		must(err)
		fmt.Println("ack", string(ack.AppMetadata))
	}
	get, err := client.DoGet(ctx, &flight.Ticket{Ticket: []byte(fmt.Sprintf(`{"slot": %q}`, os.Args[2]))})
	must(err)
	r, err := flight.NewRecordReader(get)
	must(err)
	rows := int64(0)
	for r.Next() {
		rows += r.Record().NumRows()
	}
	must(r.Err())
	fmt.Println("rows", rows)
	ex, err := client.DoExchange(ctx)
	must(err)
	must(ex.Send(&flight.FlightData{FlightDescriptor: &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: []byte(`{"subscriber": "go", "start": "earliest", "follow": false}`)}}))
	er, err := flight.NewRecordReader(ex)
	must(err)
	for er.Next() {
		var d struct{ Address string }
		must(json.Unmarshal(er.LatestAppMetadata(), &d))
		data := er.Record().Column(2).(*array.Binary).Value(0)
		one, err := ipc.NewReader(bytes.NewReader(data))
		must(err)
		one.Next()
		fmt.Println("bundle", d.Address, one.Record().NumRows())
		answer, _ := json.Marshal(map[string][]string{"ack": {d.Address}})
		must(ex.Send(&flight.FlightData{AppMetadata: answer}))
	}
	must(er.Err())
}
