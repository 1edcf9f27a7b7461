//! A small program around the Rust engine: what the benchmarks time, and what the interoperability tests talk to.
//!
//! ```text
//! rust-engine bench MODE ROWS BUNDLES DIR   ingest, seal, deliver and acknowledge; MODE is wal, synced or segment_only
//! rust-engine fill ROWS BUNDLES DIR         log so many bundles, seal nothing, die
//! rust-engine reopen DIR                    time the replay of the log, then the sealing of what it held
//! rust-engine ingest DIR clean|abort        frames from standard input; close in order, or die
//! rust-engine deliver DIR SUBSCRIBER [MAX]  deliver and acknowledge at most MAX bundles, keep the progress
//! rust-engine dump DIR                      every bundle as a frame on standard output; acknowledges nothing
//! ```
//!
//! All but `dump` print one line of JSON. A frame is, little-endian: two u64 (ingest: time in nanoseconds and 0; dump:
//! segment and index), u32 number of slots; per slot u16 number, 32 bytes fingerprint (dump: zeros), u32 length, an
//! Arrow IPC stream of that length.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{Cursor, Read, Write};
use std::num::NonZeroU64;
use std::path::Path;
use std::process::abort;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{DataType, Field, Schema};
use otel_arrow_dfe_quiver::record_bundle::{
    BundleDescriptor, PayloadRef, RecordBundle, SlotDescriptor, SlotId,
};
use otel_arrow_dfe_quiver::{
    DiskBudget, DurabilityMode, QuiverConfig, QuiverEngine, SegmentConfig, SubscriberId, WalConfig,
};
use tokio::runtime::Runtime;

type Outcome<T> = Result<T, Box<dyn Error>>;

const MIB: u64 = 1024 * 1024;
const SLOT: u16 = 30;
const SOURCES: usize = 16;

struct Bundle {
    descriptor: BundleDescriptor,
    slots: BTreeMap<u16, ([u8; 32], RecordBatch)>,
    ingested_at: SystemTime,
}

impl Bundle {
    fn new(slots: BTreeMap<u16, ([u8; 32], RecordBatch)>, ingested_at: SystemTime) -> Self {
        let listed = slots
            .keys()
            .map(|slot| SlotDescriptor::new(SlotId::new(*slot), "slot"))
            .collect();
        Self {
            descriptor: BundleDescriptor::new(listed),
            slots,
            ingested_at,
        }
    }
}

impl RecordBundle for Bundle {
    fn descriptor(&self) -> &BundleDescriptor {
        &self.descriptor
    }

    fn ingestion_time(&self) -> SystemTime {
        self.ingested_at
    }

    fn payload(&self, slot: SlotId) -> Option<PayloadRef<'_>> {
        self.slots
            .get(&slot.raw())
            .map(|(fingerprint, batch)| PayloadRef {
                schema_fingerprint: *fingerprint,
                batch,
            })
    }

    fn item_count(&self) -> u64 {
        self.slots
            .values()
            .map(|(_, batch)| batch.num_rows() as u64)
            .sum()
    }
}

/// The batches that `bench/engine.py` makes, too: int64, int64 and 43 bytes of text a row, 63 raw bytes.
fn sources(rows: usize) -> Outcome<Vec<Bundle>> {
    let schema = Arc::new(Schema::new(vec![
        Field::new("timestamp", DataType::Int64, true),
        Field::new("value", DataType::Int64, true),
        Field::new("message", DataType::Utf8, true),
    ]));
    let mut made = Vec::with_capacity(SOURCES);
    for seed in 0..SOURCES as i64 {
        let timestamps = (0..rows as i64).map(|row| 1_700_000_000_000 + seed + row);
        let values = (0..rows as i64).map(|row| row * 100 + seed);
        let messages =
            (0..rows).map(|row| format!("Log message number {row:06} with content {seed:04}"));
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from_iter_values(timestamps)),
            Arc::new(Int64Array::from_iter_values(values)),
            Arc::new(StringArray::from_iter_values(messages)),
        ];
        let batch = RecordBatch::try_new(schema.clone(), columns)?;
        made.push(Bundle::new(
            BTreeMap::from([(SLOT, ([7; 32], batch))]),
            SystemTime::now(),
        ));
    }
    Ok(made)
}

fn size(bytes: u64) -> NonZeroU64 {
    NonZeroU64::new(bytes).unwrap_or(NonZeroU64::MIN)
}

/// The engine's own defaults, but no sealing by time: a benchmark must not depend on when it was started.
fn settings(dir: &Path, durability: DurabilityMode, flush_interval: Duration) -> QuiverConfig {
    QuiverConfig {
        durability,
        wal: WalConfig {
            flush_interval,
            ..WalConfig::default()
        },
        segment: SegmentConfig {
            max_open_duration: Duration::from_secs(3600),
            ..SegmentConfig::default()
        },
        data_dir: dir.to_path_buf(),
        ..QuiverConfig::default()
    }
}

/// Everything stays in one log file and one open segment.
fn roomy_settings(dir: &Path) -> QuiverConfig {
    let mut roomy = settings(dir, DurabilityMode::Wal, Duration::ZERO);
    roomy.wal.max_size_bytes = size(1024 * MIB);
    roomy.wal.rotation_target_bytes = size(1024 * MIB);
    roomy.segment.target_size_bytes = size(1024 * MIB);
    roomy
}

async fn open(config: QuiverConfig) -> Outcome<Arc<QuiverEngine>> {
    Ok(QuiverEngine::open(config, Arc::new(DiskBudget::unlimited())).await?)
}

/// Seconds of processor time of this process, of all threads.
fn processor_s() -> f64 {
    let mut spent = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // The call only writes to `spent`; this clock always exists.
    let _ = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut spent) };
    spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
}

struct Delivery {
    bundles: u64,
    rows: u64,
    seconds: f64,
    processor_s: f64,
    refs: Vec<String>,
}

fn deliver_and_ack(engine: &Arc<QuiverEngine>, name: &str, max: u64, keep_refs: bool) -> Outcome<Delivery> {
    let id = SubscriberId::new(name)?;
    engine.register_subscriber(id.clone())?;
    engine.activate_subscriber(&id)?;
    let mut delivery = Delivery {
        bundles: 0,
        rows: 0,
        seconds: 0.0,
        processor_s: 0.0,
        refs: Vec::new(),
    };
    let started = Instant::now();
    let spent = processor_s();
    while delivery.bundles < max {
        let Some(handle) = engine.poll_next_bundle(&id)? else {
            break;
        };
        delivery.bundles += 1;
        delivery.rows += handle
            .data()
            .payloads()
            .values()
            .map(|batch| batch.num_rows() as u64)
            .sum::<u64>();
        if keep_refs {
            delivery.refs.push(format!("\"{}\"", handle.bundle_ref()));
        }
        handle.ack();
    }
    delivery.seconds = started.elapsed().as_secs_f64();
    delivery.processor_s = processor_s() - spent;
    Ok(delivery)
}

async fn bench(mode: &str, rows: usize, bundles: usize, dir: &Path) -> Outcome<()> {
    let config = match mode {
        "wal" => settings(dir, DurabilityMode::Wal, Duration::from_millis(25)),
        "synced" => settings(dir, DurabilityMode::Wal, Duration::ZERO),
        "segment_only" => settings(dir, DurabilityMode::SegmentOnly, Duration::from_millis(25)),
        _ => return Err(format!("{mode} is not wal, synced or segment_only").into()),
    };
    let source = sources(rows)?;
    let engine = open(config).await?;
    // As in `bench/engine.py`: a running engine, not one in its first second.
    for number in 0..bundles {
        engine.ingest(&source[number % SOURCES]).await?;
    }
    engine.flush().await?;
    let started = Instant::now();
    let spent = processor_s();
    for number in 0..bundles {
        engine.ingest(&source[number % SOURCES]).await?;
    }
    let ingest_s = started.elapsed().as_secs_f64();
    engine.flush().await?;
    let total_s = started.elapsed().as_secs_f64();
    let total_processor_s = processor_s() - spent;
    let delivery = deliver_and_ack(&engine, "bench", u64::MAX, false)?;
    println!(
        "{{\"bundles\": {bundles}, \"ingest_s\": {ingest_s}, \"total_s\": {total_s}, \"total_processor_s\": {total_processor_s}, \"delivered\": {}, \"rows\": {}, \"deliver_s\": {}, \"deliver_processor_s\": {}}}",
        delivery.bundles, delivery.rows, delivery.seconds, delivery.processor_s
    );
    Ok(())
}

async fn fill(rows: usize, bundles: usize, dir: &Path) -> Outcome<()> {
    let source = sources(rows)?;
    let engine = open(roomy_settings(dir)).await?;
    for number in 0..bundles {
        engine.ingest(&source[number % SOURCES]).await?;
    }
    println!("{{\"bundles\": {bundles}}}");
    std::io::stdout().flush()?;
    abort();
}

async fn reopen(dir: &Path) -> Outcome<()> {
    let (started, spent) = (Instant::now(), processor_s());
    let engine = open(roomy_settings(dir)).await?;
    let (open_s, open_processor_s) = (started.elapsed().as_secs_f64(), processor_s() - spent);
    let (started, spent) = (Instant::now(), processor_s());
    engine.flush().await?;
    let (finalize_s, finalize_processor_s) = (started.elapsed().as_secs_f64(), processor_s() - spent);
    let delivery = deliver_and_ack(&engine, "bench", u64::MAX, false)?;
    println!(
        "{{\"open_s\": {open_s}, \"open_processor_s\": {open_processor_s}, \"finalize_s\": {finalize_s}, \"finalize_processor_s\": {finalize_processor_s}, \"delivered\": {}, \"segment_bytes\": {}}}",
        delivery.bundles,
        engine.segment_bytes_written()
    );
    Ok(())
}

struct Frames<R: Read> {
    input: R,
}

impl<R: Read> Frames<R> {
    fn take<const N: usize>(&mut self) -> std::io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.input.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn next(&mut self) -> Outcome<Option<Bundle>> {
        let mut first = [0; 1];
        if self.input.read(&mut first)? == 0 {
            return Ok(None);
        }
        let rest = self.take::<7>()?;
        let mut stamp = [0; 8];
        stamp[0] = first[0];
        stamp[1..].copy_from_slice(&rest);
        let ingested_at = SystemTime::UNIX_EPOCH + Duration::from_nanos(u64::from_le_bytes(stamp));
        let _ = self.take::<8>()?;
        let mut slots = BTreeMap::new();
        for _ in 0..u32::from_le_bytes(self.take()?) {
            let slot = u16::from_le_bytes(self.take()?);
            let fingerprint = self.take::<32>()?;
            let mut stream = vec![0; u32::from_le_bytes(self.take()?) as usize];
            self.input.read_exact(&mut stream)?;
            let mut reader = StreamReader::try_new(Cursor::new(stream), None)?;
            let batch = reader.next().ok_or("a stream holds one batch")??;
            let _ = slots.insert(slot, (fingerprint, batch));
        }
        Ok(Some(Bundle::new(slots, ingested_at)))
    }
}

async fn ingest(dir: &Path, end: &str) -> Outcome<()> {
    let engine = open(settings(dir, DurabilityMode::Wal, Duration::ZERO)).await?;
    let mut frames = Frames {
        input: std::io::stdin().lock(),
    };
    let mut bundles = 0;
    while let Some(bundle) = frames.next()? {
        engine.ingest(&bundle).await?;
        bundles += 1;
    }
    println!("{{\"bundles\": {bundles}}}");
    std::io::stdout().flush()?;
    match end {
        "clean" => Ok(engine.shutdown().await?),
        "abort" => abort(),
        _ => Err(format!("{end} is not clean or abort").into()),
    }
}

async fn deliver(dir: &Path, name: &str, max: u64) -> Outcome<()> {
    let engine = open(settings(dir, DurabilityMode::Wal, Duration::ZERO)).await?;
    engine.flush().await?;
    let delivery = deliver_and_ack(&engine, name, max, true)?;
    let _ = engine.flush_progress().await?;
    println!(
        "{{\"bundles\": {}, \"rows\": {}, \"seconds\": {}, \"refs\": [{}]}}",
        delivery.bundles,
        delivery.rows,
        delivery.seconds,
        delivery.refs.join(", ")
    );
    Ok(engine.shutdown().await?)
}

async fn dump(dir: &Path) -> Outcome<()> {
    let engine = open(settings(dir, DurabilityMode::Wal, Duration::ZERO)).await?;
    engine.flush().await?;
    let id = SubscriberId::new("dump")?;
    engine.register_subscriber(id.clone())?;
    engine.activate_subscriber(&id)?;
    let mut held = Vec::new();
    let mut output = std::io::stdout().lock();
    while let Some(handle) = engine.poll_next_bundle(&id)? {
        let at = handle.bundle_ref();
        output.write_all(&at.segment_seq.raw().to_le_bytes())?;
        output.write_all(&u64::from(at.bundle_index.raw()).to_le_bytes())?;
        let slots: BTreeMap<_, _> = handle.data().payloads().iter().collect();
        output.write_all(&(slots.len() as u32).to_le_bytes())?;
        for (slot, batch) in slots {
            let mut stream = Vec::new();
            let mut writer = StreamWriter::try_new(&mut stream, &batch.schema())?;
            writer.write(batch)?;
            writer.finish()?;
            drop(writer);
            output.write_all(&slot.raw().to_le_bytes())?;
            output.write_all(&[0; 32])?;
            output.write_all(&(stream.len() as u32).to_le_bytes())?;
            output.write_all(&stream)?;
        }
        held.push(handle);
    }
    output.flush()?;
    Ok(())
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime = Runtime::new()?;
    match words.as_slice() {
        ["bench", mode, rows, bundles, dir] => {
            runtime.block_on(bench(mode, rows.parse()?, bundles.parse()?, Path::new(dir)))
        }
        ["fill", rows, bundles, dir] => {
            runtime.block_on(fill(rows.parse()?, bundles.parse()?, Path::new(dir)))
        }
        ["reopen", dir] => runtime.block_on(reopen(Path::new(dir))),
        ["ingest", dir, end] => runtime.block_on(ingest(Path::new(dir), end)),
        ["deliver", dir, name] => runtime.block_on(deliver(Path::new(dir), name, u64::MAX)),
        ["deliver", dir, name, max] => {
            runtime.block_on(deliver(Path::new(dir), name, max.parse()?))
        }
        ["dump", dir] => runtime.block_on(dump(Path::new(dir))),
        _ => Err("use: rust-engine bench|fill|reopen|ingest|deliver|dump …; see src/main.rs".into()),
    }
}
