module quiver.test/flight

go 1.26.0

require (
	github.com/apache/arrow-go/v18 v18.8.0
	google.golang.org/grpc v1.85.0
)
