//! Speaks OTAP streams with the Rust crates, for the interoperability tests.
//!
//! ```text
//! otap-driver decode SIGNAL        BatchArrowRecords in, OTLP requests out
//! otap-driver encode SIGNAL        OTLP requests in, BatchArrowRecords out
//! otap-driver send SIGNAL URL      OTLP requests in, sent as one stream; BatchStatus out
//! otap-driver serve                its port in a line, then OTLP requests out as streams bring them; ends with stdin
//! ```
//!
//! Messages go in and out as a length of 4 bytes, little endian, and the bytes. SIGNAL is logs, traces or metrics.

use std::io::{self, Read, Write};
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use otel_arrow_dfe_pdata as pdata;
use pdata::proto::opentelemetry::arrow::v1 as wire;
use pdata::{Consumer, OtapArrowRecords, OtlpProtoBytes, Producer, TryFromWithOptions};
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};
use wire::{BatchArrowRecords, BatchStatus};

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Statuses = Pin<Box<dyn Stream<Item = Result<BatchStatus, Status>> + Send>>;

fn frames() -> io::Result<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    let _ = io::stdin().lock().read_to_end(&mut all)?;
    let mut found = Vec::new();
    let mut rest = all.as_slice();
    while rest.len() >= 4 {
        let (head, tail) = rest.split_at(4);
        let size = u32::from_le_bytes(head.try_into().expect("4 bytes")) as usize;
        found.push(tail[..size].to_vec());
        rest = &tail[size..];
    }
    Ok(found)
}

fn put(data: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(&(data.len() as u32).to_le_bytes())?;
    out.write_all(data)?;
    out.flush()
}

fn decoded(consumer: &mut Consumer, signal: &str, batch: &mut BatchArrowRecords) -> Result<Vec<u8>, Failure> {
    Ok(match signal {
        "logs" => consumer.consume_logs_batches(batch)?.encode_to_vec(),
        "traces" => consumer.consume_traces_batches(batch)?.encode_to_vec(),
        _ => consumer.consume_metrics_batches(batch)?.encode_to_vec(),
    })
}

fn encoded(producer: &mut Producer, signal: &str, request: Vec<u8>) -> Result<BatchArrowRecords, Failure> {
    let bytes = match signal {
        "logs" => OtlpProtoBytes::ExportLogsRequest(request.into()),
        "traces" => OtlpProtoBytes::ExportTracesRequest(request.into()),
        _ => OtlpProtoBytes::ExportMetricsRequest(request.into()),
    };
    let mut tables = OtapArrowRecords::try_from_with_default(bytes)?;
    Ok(producer.produce_bar(&mut tables)?)
}

async fn send(signal: &str, url: String) -> Result<(), Failure> {
    let mut producer = Producer::new();
    let mut batches = Vec::new();
    for request in frames()? {
        batches.push(encoded(&mut producer, signal, request)?);
    }
    let outgoing = tokio_stream::iter(batches);
    let mut statuses = match signal {
        "logs" => {
            let mut client = wire::arrow_logs_service_client::ArrowLogsServiceClient::connect(url).await?;
            client.arrow_logs(outgoing).await?.into_inner()
        }
        "traces" => {
            let mut client = wire::arrow_traces_service_client::ArrowTracesServiceClient::connect(url).await?;
            client.arrow_traces(outgoing).await?.into_inner()
        }
        _ => {
            let mut client = wire::arrow_metrics_service_client::ArrowMetricsServiceClient::connect(url).await?;
            client.arrow_metrics(outgoing).await?.into_inner()
        }
    };
    while let Some(status) = statuses.message().await? {
        put(&status.encode_to_vec())?;
    }
    Ok(())
}

/// Takes streams, writes what they bring to stdout, and confirms it.
#[derive(Clone, Default)]
struct Printing {
    one_at_a_time: Arc<Mutex<()>>,
}

impl Printing {
    fn answer(&self, signal: &'static str, incoming: Streaming<BatchArrowRecords>) -> Response<Statuses> {
        let (sender, receiver) = mpsc::channel(16);
        let printing = self.clone();
        drop(tokio::spawn(async move { printing.take(signal, incoming, sender).await }));
        Response::new(Box::pin(ReceiverStream::new(receiver)))
    }

    async fn take(
        &self,
        signal: &'static str,
        mut incoming: Streaming<BatchArrowRecords>,
        sender: mpsc::Sender<Result<BatchStatus, Status>>,
    ) {
        let mut consumer = Consumer::default();
        while let Some(Ok(mut batch)) = incoming.next().await {
            let batch_id = batch.batch_id;
            let answer = match decoded(&mut consumer, signal, &mut batch) {
                Ok(request) => {
                    let _turn = self.one_at_a_time.lock().expect("not poisoned");
                    put(&request).expect("stdout is open");
                    Ok(BatchStatus { batch_id, ..Default::default() })
                }
                Err(error) => Err(Status::internal(error.to_string())),
            };
            if sender.send(answer).await.is_err() {
                return;
            }
        }
    }
}

#[tonic::async_trait]
impl wire::arrow_logs_service_server::ArrowLogsService for Printing {
    type ArrowLogsStream = Statuses;

    async fn arrow_logs(&self, request: Request<Streaming<BatchArrowRecords>>) -> Result<Response<Statuses>, Status> {
        Ok(self.answer("logs", request.into_inner()))
    }
}

#[tonic::async_trait]
impl wire::arrow_traces_service_server::ArrowTracesService for Printing {
    type ArrowTracesStream = Statuses;

    async fn arrow_traces(&self, request: Request<Streaming<BatchArrowRecords>>) -> Result<Response<Statuses>, Status> {
        Ok(self.answer("traces", request.into_inner()))
    }
}

#[tonic::async_trait]
impl wire::arrow_metrics_service_server::ArrowMetricsService for Printing {
    type ArrowMetricsStream = Statuses;

    async fn arrow_metrics(&self, request: Request<Streaming<BatchArrowRecords>>) -> Result<Response<Statuses>, Status> {
        Ok(self.answer("metrics", request.into_inner()))
    }
}

async fn serve() -> Result<(), Failure> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?.port());
    let printing = Printing::default();
    tonic::transport::Server::builder()
        .add_service(wire::arrow_logs_service_server::ArrowLogsServiceServer::new(printing.clone()))
        .add_service(wire::arrow_traces_service_server::ArrowTracesServiceServer::new(printing.clone()))
        .add_service(wire::arrow_metrics_service_server::ArrowMetricsServiceServer::new(printing))
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), async {
            let _ = tokio::task::spawn_blocking(|| io::stdin().read_to_end(&mut Vec::new())).await;
        })
        .await?;
    Ok(())
}

fn run() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Runtime::new()?;
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["decode", signal] => {
            let mut consumer = Consumer::default();
            for frame in frames()? {
                put(&decoded(&mut consumer, signal, &mut BatchArrowRecords::decode(frame.as_slice())?)?)?;
            }
            Ok(())
        }
        ["encode", signal] => {
            let mut producer = Producer::new();
            for frame in frames()? {
                put(&encoded(&mut producer, signal, frame)?.encode_to_vec())?;
            }
            Ok(())
        }
        ["send", signal, url] => runtime.block_on(send(signal, (*url).to_string())),
        ["serve"] => runtime.block_on(serve()),
        _ => Err("usage: otap-driver decode|encode SIGNAL, send SIGNAL URL, serve".into()),
    }
}

fn main() {
    if let Err(error) = run() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
