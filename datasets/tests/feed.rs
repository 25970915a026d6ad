//! The feed: one order whichever way rows travel, labels beside them, epochs that can be resumed.
#![allow(clippy::unwrap_used)]
use crate::common::{TestResult, message};
use candle::{DType, Device};
use chandlery_datasets::{Error, Feed, FeedConfig, Result, RowType, Source, Split};
use chandlery_ops::Group;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The CPU, and with the feature the first GPU, whose absence is then a failure.
fn devices() -> Result<Vec<Device>> {
    let mut devices = vec![Device::Cpu];
    if cfg!(feature = "cuda") {
        devices.push(chandlery_ops::core::cuda_device(0)?);
    }
    Ok(devices)
}

/// 103 rows of 3 bytes; row `i` is `[i, 2i, 3i]` modulo 256, its label `i`.
fn bytes() -> Split {
    let values = (0..103u32).flat_map(|i| [i as u8, (2 * i) as u8, (3 * i) as u8]);
    Split::from_u8(values.collect(), 3, Some((0..103).collect())).unwrap()
}

/// 103 rows of 5 floats; row `i` is `i + j / 8`, its label `i`.
fn floats() -> Split {
    let values = (0..103).flat_map(|i| (0..5).map(move |j| i as f32 + j as f32 / 8.));
    Split::from_f32(values.collect(), 5, Some((0..103).collect())).unwrap()
}

/// Rows, as f64 so that both types compare, and labels of a minibatch.
type Rows = (Vec<Vec<f64>>, Vec<u32>);

/// The minibatches that are left of the epoch.
fn drain(feed: &mut Feed) -> Result<Vec<Rows>> {
    let mut all = Vec::new();
    while let Some(minibatch) = feed.next()? {
        let rows = minibatch.rows.to_dtype(DType::F64)?.to_vec2()?;
        let labels = minibatch.labels.map(|l| l.to_vec1()).transpose()?;
        all.push((rows, labels.unwrap_or_default()));
    }
    Ok(all)
}

fn streamed(batch: usize, chunk_bytes: usize) -> FeedConfig {
    FeedConfig { chunk_bytes, resident_bytes: None, ..FeedConfig::new(batch, 11) }
}

#[test]
fn resident_and_streamed_give_the_same_minibatches() -> TestResult {
    for device in devices()? {
        for split in [bytes(), floats()] {
            let mut resident = Feed::new(&split, &device, FeedConfig::new(8, 11))?;
            assert!(resident.is_resident());
            // Chunks of one minibatch (also when not even that fits), of three, of more than there
            // are.
            for chunk_bytes in [1, 8 * 20, 3 * 8 * 20 + 1, 1 << 20] {
                let mut stream = Feed::new(&split, &device, streamed(8, chunk_bytes))?;
                assert!(!stream.is_resident());
                assert_eq!(stream.n_batches(), 13);
                for epoch in [0, 1, u64::MAX] {
                    resident.start_epoch(epoch, 0)?;
                    stream.start_epoch(epoch, 0)?;
                    let want = drain(&mut resident)?;
                    assert_eq!(want.len(), 13);
                    assert_eq!(want[12].0.len(), 103 - 12 * 8);
                    assert_eq!(drain(&mut stream)?, want, "{chunk_bytes} bytes a chunk");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn an_epoch_has_each_row_once_with_its_label_and_stored_type() -> TestResult {
    for config in [FeedConfig::new(10, 3), streamed(10, 70)] {
        let split = bytes();
        let mut feed = Feed::new(&split, &Device::Cpu, config)?;
        feed.start_epoch(5, 0)?;
        let mut seen = Vec::new();
        while let Some(minibatch) = feed.next()? {
            assert_eq!(minibatch.rows.dtype(), DType::U8);
            let left = 103 - seen.len();
            assert_eq!(minibatch.rows.dims(), [left.min(10), 3]);
            let labels = minibatch.labels.ok_or("no labels")?.to_vec1::<u32>()?;
            for (row, i) in minibatch.rows.to_vec2::<u8>()?.into_iter().zip(labels) {
                assert_eq!(row, [i as u8, (2 * i) as u8, (3 * i) as u8]);
                seen.push(i);
            }
        }
        assert_ne!(seen, (0..103).collect::<Vec<_>>(), "not shuffled");
        seen.sort_unstable();
        assert_eq!(seen, (0..103).collect::<Vec<_>>(), "each row once");
    }
    Ok(())
}

#[test]
fn skipping_minibatches_equals_running_them() -> TestResult {
    for config in [FeedConfig::new(7, 1), streamed(7, 130)] {
        let split = floats();
        let mut feed = Feed::new(&split, &Device::Cpu, config.clone())?;
        feed.start_epoch(2, 0)?;
        let whole = drain(&mut feed)?;
        for skip in 0..=feed.n_batches() {
            // The same feed, left in the middle of another epoch, and a new one.
            feed.start_epoch(9, 0)?;
            feed.next()?;
            feed.start_epoch(2, skip)?;
            assert_eq!(drain(&mut feed)?, whole[skip..]);
            let mut fresh = Feed::new(&split, &Device::Cpu, config.clone())?;
            fresh.start_epoch(2, skip)?;
            assert_eq!(drain(&mut fresh)?, whole[skip..]);
        }
    }
    Ok(())
}

#[test]
fn order_depends_on_seed_and_epoch() -> TestResult {
    let split = bytes();
    let labels = |seed, epoch| -> Result<Vec<u32>> {
        let mut feed = Feed::new(&split, &Device::Cpu, FeedConfig::new(103, seed))?;
        feed.start_epoch(epoch, 0)?;
        Ok(drain(&mut feed)?.remove(0).1)
    };
    assert_eq!(labels(4, 0)?, labels(4, 0)?);
    assert_ne!(labels(4, 0)?, labels(4, 1)?);
    assert_ne!(labels(4, 0)?, labels(5, 0)?);
    Ok(())
}

#[test]
fn in_order_gives_every_row_once_as_the_source_has_them() -> TestResult {
    for resident_bytes in [Some(usize::MAX), None] {
        let config = FeedConfig { resident_bytes, chunk_bytes: 64, ..FeedConfig::in_order(10) };
        let mut feed = Feed::new(&bytes(), &Device::Cpu, config)?;
        feed.start_epoch(0, 0)?;
        let all = drain(&mut feed)?;
        let labels: Vec<u32> = all.iter().flat_map(|(_, labels)| labels.clone()).collect();
        assert_eq!(labels, (0..103).collect::<Vec<_>>());
        assert_eq!(all.last().map(|(rows, _)| rows.len()), Some(3));
        assert_eq!((all.len(), feed.n_batches()), (11, 11));
    }
    Ok(())
}

#[test]
fn end_of_epoch_stays_the_end() -> TestResult {
    let mut feed = Feed::new(&bytes(), &Device::Cpu, streamed(50, 1))?;
    feed.start_epoch(0, 3)?;
    assert!(feed.next()?.is_none());
    assert!(feed.next()?.is_none());
    Ok(())
}

#[test]
fn a_split_without_labels_feeds_none() -> TestResult {
    let split = Split::from_u8(vec![1; 12], 3, None)?;
    let mut feed = Feed::new(&split, &Device::Cpu, FeedConfig::new(2, 0))?;
    feed.start_epoch(0, 0)?;
    assert!(feed.next()?.ok_or("no minibatch")?.labels.is_none());
    assert_eq!(feed.scale(), 1. / 255.);
    assert_eq!(Feed::new(&floats(), &Device::Cpu, FeedConfig::new(2, 0))?.scale(), 1.);
    Ok(())
}

/// Rows of one float above 0, and what was read of them, in order.
#[derive(Debug, Default)]
struct Watched {
    read: Mutex<Vec<u32>>,
}

impl Source for Watched {
    fn n_samples(&self) -> usize {
        103
    }
    fn n_features(&self) -> usize {
        1
    }
    fn row_type(&self) -> RowType {
        RowType::F32
    }
    fn read_rows(&self, indices: &[u32], out: &mut [u8]) -> Result<()> {
        self.read.lock().unwrap().extend(indices);
        for (&index, out) in indices.iter().zip(out.chunks_exact_mut(4)) {
            out.copy_from_slice(&(index as f32 + 1.).to_ne_bytes());
        }
        Ok(())
    }
}

/// Whether a rank would have no row of so many.
fn is_small(group: &Group, n: usize) -> bool {
    group.rows_of(group.world() - 1, n).is_empty()
}

#[test]
fn ranks_read_an_epoch_once_together_and_get_their_rows_of_the_minibatches_of_one() -> TestResult {
    for (batch, chunk_bytes) in [(10, 1), (10, 4 * 35), (25, 1 << 20), (103, 1 << 20)] {
        for (shuffle, mix) in [(false, None), (true, None), (true, Some(32))] {
            let config = FeedConfig { shuffle, mix, ..streamed(batch, chunk_bytes) };
            let all = Split::new(Arc::new(Watched::default()), None)?;
            let mut of_one = Feed::new(&all, &Device::Cpu, config.clone())?;
            for (world, skip) in [(1, 0), (2, 0), (3, 1), (4, 0)] {
                let what = format!("{world} ranks, {config:?}");
                of_one.start_epoch(1, skip)?;
                let want = drain(&mut of_one)?;
                let made = Group::on_threads(Group::threads(world), |group| -> Result<_> {
                    let source = Arc::new(Watched::default());
                    let split = Split::new(source.clone(), None)?;
                    let mut feed = Feed::new(&split, &Device::Cpu, config.clone())?;
                    feed.start_epoch_of(group, 1, skip)?;
                    let minibatches = drain(&mut feed)?;
                    // What comes behind is of the next epoch, ahead of its use.
                    let read = source.read.lock().unwrap().clone();
                    // All rows of an epoch, which is left for the same one.
                    feed.start_epoch(1, skip)?;
                    assert_eq!(feed.next()?.map(|of| of.rows.dims()[0]), want.first().map(|of| of.0.len()));
                    feed.start_epoch_of(group, 1, skip)?;
                    assert_eq!(drain(&mut feed)?, minibatches, "{what}, again");
                    let mut own = 0;
                    for ((rows, _), (want, _)) in minibatches.iter().zip(&want) {
                        let n = want.len();
                        let places = if is_small(group, n) { 0..n } else { group.rows(n) };
                        own += places.len();
                        for (i, (row, want)) in rows.iter().zip(want).enumerate() {
                            let other = vec![0.];
                            assert_eq!(row, if places.contains(&i) { want } else { &other }, "{what}");
                        }
                    }
                    assert_eq!(minibatches.len(), want.len(), "{what}");
                    Ok(read[..own].to_vec())
                });
                let mut read = made.into_iter().collect::<Result<Vec<_>>>()?.concat();
                read.sort_unstable();
                let group = &Group::threads(world)[0];
                let times = |n: usize| if is_small(group, n) { world } else { 1 };
                let often =
                    want.iter().flat_map(|(rows, _)| rows.iter().map(|row| (row[0], times(rows.len()))));
                let mut want: Vec<u32> =
                    often.flat_map(|(row, times)| std::iter::repeat_n(row as u32 - 1, times)).collect();
                want.sort_unstable();
                assert_eq!(read, want, "{what}");
            }
        }
    }
    Ok(())
}

/// Rows that fill pages, and what is said and read of them, in order: whether it is read, and
/// which.
#[derive(Debug, Default)]
struct Pages {
    log: Mutex<Vec<(bool, u32)>>,
}

impl Source for Pages {
    fn n_samples(&self) -> usize {
        203
    }
    fn n_features(&self) -> usize {
        4096
    }
    fn row_type(&self) -> RowType {
        RowType::U8
    }
    fn read_rows(&self, indices: &[u32], _: &mut [u8]) -> Result<()> {
        self.log.lock().unwrap().extend(indices.iter().map(|&row| (true, row)));
        Ok(())
    }
    fn will_read(&self, rows: std::ops::Range<usize>) {
        self.log.lock().unwrap().extend(rows.map(|row| (false, row as u32)));
    }
}

#[test]
fn in_a_mixed_order_ranks_have_their_own_rows_fetched_alone_and_before_they_read_them() -> TestResult {
    let config = FeedConfig { mix: Some(64), ..streamed(20, 4096 * 20) };
    for world in 2..=4 {
        let made = Group::on_threads(Group::threads(world), |group| -> Result<_> {
            let source = Arc::new(Pages::default());
            let mut feed = Feed::new(&Split::new(source.clone(), None)?, &Device::Cpu, config.clone())?;
            feed.start_epoch_of(group, 0, 0)?;
            while feed.next()?.is_some() {}
            let log = source.log.lock().unwrap().clone();
            let of = |read| log.iter().filter(move |said| said.0 == read).map(|said| said.1);
            let places = |n| if is_small(group, n) { n } else { group.rows(n).len() };
            let own = 10 * places(20) + places(3);
            let [mut fetched, mut read] = [false, true].map(|read| of(read).take(own).collect::<Vec<_>>());
            for row in &read {
                let at = |said| log.iter().position(|of| *of == (said, *row));
                assert!(at(false) < at(true), "row {row} of {world} ranks");
            }
            fetched.sort_unstable();
            read.sort_unstable();
            assert_eq!(fetched, read, "{world} ranks");
            Ok(read)
        });
        let mut all = made.into_iter().collect::<Result<Vec<_>>>()?.concat();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all, (0..203).collect::<Vec<_>>());
    }
    Ok(())
}

#[test]
fn rows_that_a_rank_has_ahead_are_those_of_its_next_epoch() -> TestResult {
    let config = streamed(10, 4 * 35);
    for made in Group::on_threads(Group::threads(2), |group| -> Result<_> {
        let source = Arc::new(Watched::default());
        let mut feed = Feed::new(&Split::new(source.clone(), None)?, &Device::Cpu, config.clone())?;
        for epoch in 0..3 {
            feed.start_epoch_of(group, epoch, 0)?;
            drain(&mut feed)?;
        }
        let own: usize = (0..10).map(|_| group.rows(10).len()).sum::<usize>() + 3;
        let read = source.read.lock().unwrap().len();
        // Two chunks of 30 rows wait for the fourth epoch, and one is on the device.
        Ok((read, own))
    }) {
        let (read, own) = made?;
        assert!((3 * own..=3 * own + 3 * 30).contains(&read), "{read} of 3 times {own}");
    }
    Ok(())
}

/// Rows of one byte, the row's number; cannot read rows from `broken` on. Counts its reads.
#[derive(Debug, Default)]
struct Broken {
    broken: u32,
    reads: AtomicUsize,
}

impl Source for Broken {
    fn n_samples(&self) -> usize {
        100
    }
    fn n_features(&self) -> usize {
        1
    }
    fn row_type(&self) -> RowType {
        RowType::U8
    }
    fn read_rows(&self, indices: &[u32], out: &mut [u8]) -> Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        for (&index, out) in indices.iter().zip(out) {
            if index >= self.broken {
                return Err(Error::Argument(format!("row {index} is broken")));
            }
            *out = index as u8;
        }
        Ok(())
    }
}

#[test]
fn an_error_of_the_source_arrives_and_the_feed_can_go_on() -> TestResult {
    let split = Split::new(Arc::new(Broken { broken: 35, ..Broken::default() }), None)?;
    let config = FeedConfig { shuffle: false, ..streamed(10, 10) };
    let mut feed = Feed::new(&split, &Device::Cpu, config)?;
    for _ in 0..2 {
        feed.start_epoch(0, 0)?;
        let mut read = 0;
        let text = loop {
            match feed.next() {
                Ok(Some(minibatch)) => read += minibatch.rows.dim(0)?,
                Ok(None) => return Err("the broken rows went unseen".into()),
                Err(e) => break e.to_string(),
            }
        };
        assert_eq!(text, "row 35 is broken");
        // The chunk that fails is sent while the one before is begun.
        assert!(read >= 10, "{read} rows came before the error");
        assert_eq!(
            message(feed.next(), Path::new("/nowhere")),
            "Feed: no epoch is under way; call start_epoch first"
        );
    }
    Ok(())
}

#[test]
fn epochs_one_after_the_other_read_each_chunk_once() -> TestResult {
    // 100 rows in ten chunks, and in one.
    for chunk_bytes in [10, 100] {
        let source = Arc::new(Broken { broken: 100, ..Broken::default() });
        let split = Split::new(source.clone(), None)?;
        let mut feed = Feed::new(&split, &Device::Cpu, streamed(10, chunk_bytes))?;
        for epoch in 3..10 {
            feed.start_epoch(epoch, 0)?;
            assert_eq!(drain(&mut feed)?.len(), 10);
        }
        let (of_use, ahead) = (7 * 100 / chunk_bytes, 3);
        let reads = source.reads.load(Ordering::Relaxed);
        assert!((of_use..=of_use + ahead).contains(&reads), "{reads} reads in chunks of {chunk_bytes} rows");
    }
    Ok(())
}

#[test]
fn rows_that_cannot_be_read_ahead_end_their_own_epoch_alone() -> TestResult {
    // Four reads an epoch, of 30, 30, 30 and 10 rows: the fifth, from which on they fail, is made
    // while the first epoch is under way.
    let split = Split::new(Arc::new(Fails { at: 4, reads: AtomicUsize::new(0) }), None)?;
    let mut feed = Feed::new(&split, &Device::Cpu, streamed(30, 30))?;
    feed.start_epoch(0, 0)?;
    assert_eq!(drain(&mut feed)?.len(), 4);
    feed.start_epoch(1, 0)?;
    assert!(drain(&mut feed).unwrap_err().to_string().ends_with("failed"));
    Ok(())
}

/// A hundred rows of one byte, whose reads fail from one on.
#[derive(Debug)]
struct Fails {
    at: usize,
    reads: AtomicUsize,
}

impl Source for Fails {
    fn n_samples(&self) -> usize {
        100
    }
    fn n_features(&self) -> usize {
        1
    }
    fn row_type(&self) -> RowType {
        RowType::U8
    }
    fn read_rows(&self, _: &[u32], out: &mut [u8]) -> Result<()> {
        out.fill(1);
        match self.reads.fetch_add(1, Ordering::Relaxed) {
            read if read >= self.at => Err(Error::Argument(format!("read {read} failed"))),
            _ => Ok(()),
        }
    }
}

#[test]
fn feed_says_what_is_wrong() -> TestResult {
    let split = bytes();
    let nowhere = Path::new("/nowhere");
    let new = |batch| Feed::new(&split, &Device::Cpu, FeedConfig::new(batch, 0));
    assert_eq!(
        message(new(0), nowhere),
        "Feed: batch and the number of rows must be at least 1, got 0 for 103 rows"
    );
    // Fewer rows than a minibatch are one.
    assert_eq!(new(104)?.n_batches(), 1);
    let mut feed = new(10)?;
    assert_eq!(message(feed.next(), nowhere), "Feed: no epoch is under way; call start_epoch first");
    assert_eq!(
        message(feed.start_epoch(0, 12), nowhere),
        "Feed: skip_batches must be at most the 11 of an epoch, got 12"
    );
    Ok(())
}

#[test]
fn labels_of_another_number_than_rows_are_refused_and_not_read() {
    let rows = candle::Tensor::zeros((100, 3), DType::F32, &Device::Cpu).unwrap();
    let split = Split { labels: Some(Arc::from([0u32, 1])), ..Split::from_tensors(&rows, None).unwrap() };
    let want = Split::from_f32(vec![0.; 300], 3, Some(vec![0, 1])).map(drop).unwrap_err().to_string();
    for result in
        [Feed::new(&split, &Device::Cpu, FeedConfig::new(10, 0)).map(drop), split.select(&[5, 99]).map(drop)]
    {
        assert_eq!(result.unwrap_err().to_string(), want);
    }
}
