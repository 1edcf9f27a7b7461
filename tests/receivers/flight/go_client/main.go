// A client on arrow-go: it puts three batches, reads them back, and acknowledges them in a subscription.
//
//	client HOST:PORT SLOT
//	client HOST:PORT NAMESPACE/TOPIC
//
// It prints one line for each acknowledgement, the number of rows, and one line for each delivered bundle or message.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

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
	if strings.Contains(os.Args[2], "/") {
		topic(ctx, client, os.Args[2])
		return
	}
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

// Produces two numbered batches, sends the second one again, reads the topic, and acknowledges its messages.
func topic(ctx context.Context, client flight.Client, name string) {
	command := func(more string) []byte { return []byte(fmt.Sprintf(`{"topic": %q%s}`, name, more)) }
	schema := arrow.NewSchema([]arrow.Field{{Name: "payload", Type: arrow.BinaryTypes.Binary}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	put, err := client.DoPut(ctx)
	must(err)
	w := flight.NewRecordWriter(put, ipc.WithSchema(schema))
	w.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: command(`, "producer": "go"`)})
	for _, first := range []int{0, 2, 2} {
		for n := first; n < first+2; n++ {
			b.Field(0).(*array.BinaryBuilder).Append([]byte(strconv.Itoa(n)))
		}
		must(w.WriteWithAppMetadata(b.NewRecord(), []byte(fmt.Sprintf(`{"sequence": %d}`, first))))
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
	get, err := client.DoGet(ctx, &flight.Ticket{Ticket: command("")})
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
	cmd := command(`, "subscription": "go", "start": "earliest", "follow": false`)
	must(ex.Send(&flight.FlightData{FlightDescriptor: &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: cmd}}))
	er, err := flight.NewRecordReader(ex)
	must(err)
	for er.Next() {
		offsets := er.Record().Column(0).(*array.Int64)
		var done []string
		for n := 0; n < offsets.Len(); n++ {
			fmt.Println("message", offsets.Value(n), string(er.Record().Column(3).(*array.Binary).Value(n)))
			done = append(done, strconv.FormatInt(offsets.Value(n), 10))
		}
		answer, _ := json.Marshal(map[string][]string{"ack": done})
		must(ex.Send(&flight.FlightData{AppMetadata: answer}))
	}
	must(er.Err())
}
