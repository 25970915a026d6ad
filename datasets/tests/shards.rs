//! Rows in shards: folders of them as one data set, floats of 16 bits that stay so, what is no
//! shard, and minibatches from a buffer.
#![allow(clippy::unwrap_used)]
use crate::common::{Leaf, TestResult, all_rows, f32s, message, npy, open_path, open_with, parquet};
use candle::{DType, Device, Tensor};
use chandlery_datasets::{DataOptions, Error, Feed, FeedConfig, RowType, Split};
use half::{bf16, f16};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// Rows that stay in their files.
fn stay() -> DataOptions {
    DataOptions { stay: true, ..DataOptions::default() }
}

/// Numbers that 16 bits hold: row `i` is `i + j / 4`.
fn values(rows: std::ops::Range<usize>, width: usize) -> Vec<f32> {
    rows.flat_map(|i| (0..width).map(move |j| i as f32 + j as f32 / 4.)).collect()
}

/// A tensor of such numbers, of a type, in a file.
fn save(path: &Path, rows: std::ops::Range<usize>, width: usize, dtype: DType) -> candle::Result<()> {
    let shape = (rows.len(), width);
    let rows = Tensor::from_vec(values(rows, width), shape, &Device::Cpu)?.to_dtype(dtype)?;
    candle::safetensors::save(&HashMap::from([("activations", rows)]), path)
}

#[test]
fn shards_are_one_data_set_in_the_order_of_their_names() -> TestResult {
    let types = [(DType::F32, RowType::F32), (DType::BF16, RowType::Bf16), (DType::F16, RowType::F16)];
    for (dtype, stored) in types {
        let dir = tempfile::tempdir()?;
        std::fs::create_dir_all(dir.path().join("more/test"))?;
        save(&dir.path().join("b.safetensors"), 5..9, 3, dtype)?;
        save(&dir.path().join("a.safetensors"), 0..5, 3, dtype)?;
        save(&dir.path().join("more/0.safetensors"), 9..10, 3, dtype)?;
        save(&dir.path().join("more/test/0.safetensors"), 20..22, 3, dtype)?;
        for (options, want) in [(stay(), stored), (DataOptions::default(), RowType::F32)] {
            let data = open_with(dir.path(), options)?;
            assert_eq!(data.train.row_type(), want);
            assert_eq!(data.train.raw(&Device::Cpu)?.dtype(), want.dtype());
            let read = |split: &Split| -> chandlery_datasets::Result<Vec<f32>> {
                Ok(split.to_tensor(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?)
            };
            assert_eq!(read(&data.train)?, values(0..10, 3), "{dtype:?}");
            assert_eq!(read(&data.test.unwrap())?, values(20..22, 3), "{dtype:?}");
        }
        // A file by itself.
        let one = open_with(&dir.path().join("a.safetensors"), stay())?.train;
        assert_eq!((one.row_type(), one.n_samples()), (stored, 5));
        let few = open_with(dir.path(), DataOptions { max_rows: Some(7), ..stay() })?;
        assert_eq!(few.train.to_tensor(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?, values(0..7, 3));
    }
    Ok(())
}

#[test]
fn arrays_of_numpy_are_shards_where_no_name_says_what_one_is() -> TestResult {
    let dir = tempfile::tempdir()?;
    let half =
        |rows| values(rows, 2).into_iter().flat_map(|x| f16::from_f32(x).to_le_bytes()).collect::<Vec<_>>();
    for (name, rows) in [("0.npy", 0..3), ("1.npy", 3..8), ("2.npy", 8..9)] {
        std::fs::write(dir.path().join(name), npy("<f2", &[rows.len(), 2], &half(rows)))?;
    }
    let data = open_with(dir.path(), stay())?;
    assert_eq!((data.train.row_type(), data.train.n_samples()), (RowType::F16, 9));
    assert_eq!(all_rows(data.train.rows.as_ref())?, half(0..9));
    // Rows in any order, of several shards.
    let split = data.train.select(&[8, 0, 5, 5, 2])?;
    let want: Vec<u8> = [8, 0, 5, 5, 2].into_iter().flat_map(|i| half(i..i + 1)).collect();
    assert_eq!(all_rows(split.rows.as_ref())?, want);
    // As before: a file of the training split is one, whatever lies beside it.
    std::fs::rename(dir.path().join("1.npy"), dir.path().join("train.npy"))?;
    assert_eq!(open_path(dir.path())?.train.n_samples(), 5);
    std::fs::rename(dir.path().join("0.npy"), dir.path().join("train_0.npy"))?;
    let data = open_path(dir.path())?;
    assert_eq!((data.train.n_samples(), data.test.is_none()), (8, true));
    Ok(())
}

#[test]
fn what_is_no_shard_is_refused_by_the_name_of_its_file() -> TestResult {
    let with = |name: &str, bytes: &[u8]| -> Result<String, Box<dyn std::error::Error>> {
        let dir = tempfile::tempdir()?;
        save(&dir.path().join("a.safetensors"), 0..3, 2, DType::F32)?;
        std::fs::write(dir.path().join(name), bytes)?;
        let said = open_with(dir.path(), stay()).and_then(|data| {
            let rows = data.train.rows.clone();
            all_rows(rows.as_ref()).map(|_| data)
        });
        Ok(message(said, dir.path()))
    };
    let file = |rows: std::ops::Range<usize>, width, dtype| -> Result<Vec<u8>, Box<dyn std::error::Error>> {
        let dir = tempfile::tempdir()?;
        save(&dir.path().join("x"), rows, width, dtype)?;
        Ok(std::fs::read(dir.path().join("x"))?)
    };
    let wide = with("b.safetensors", &file(0..2, 3, DType::F32)?)?;
    assert_eq!(
        wide,
        "DIR/b.safetensors: has rows of 3 values, the first shard of 2; give shards of one width"
    );
    assert_eq!(
        with("b.safetensors", &file(0..2, 2, DType::BF16)?)?,
        "DIR/b.safetensors: has rows of Bf16, the first shard of F32; save all shards as one type"
    );
    assert_eq!(
        with("b.safetensors", &file(0..0, 2, DType::F32)?)?,
        "DIR/b.safetensors, tensor 'activations': holds 0 rows of 2 values; give at least one row of at least one value"
    );
    let whole = file(0..2, 2, DType::F32)?;
    let cut = with("b.safetensors", &whole[..whole.len() - 3])?;
    assert!(cut.starts_with("DIR/b.safetensors: not a whole .safetensors file: "), "{cut}");
    let cut = with("b.safetensors", &[])?;
    assert!(cut.starts_with("DIR/b.safetensors: not a whole .safetensors file: "), "{cut}");
    let mut bad = file(0..2, 2, DType::F32)?;
    let end = bad.len();
    bad[end - 8..end - 4].copy_from_slice(&f32::NAN.to_le_bytes());
    assert_eq!(
        with("b.safetensors", &bad)?,
        "DIR/b.safetensors, tensor 'activations': row 1, column 0 is NaN; replace or drop such values and save again"
    );
    let mut bad = file(0..2, 2, DType::F16)?;
    let end = bad.len();
    bad[end - 2..].copy_from_slice(&f16::INFINITY.to_le_bytes());
    let dir = tempfile::tempdir()?;
    std::fs::write(dir.path().join("b.safetensors"), bad)?;
    // Nothing is read of what stays in its files before it is asked for.
    let data = open_with(dir.path(), stay())?;
    let said = message(all_rows(data.train.select(&[1])?.rows.as_ref()), dir.path());
    assert!(said.ends_with("row 1, column 1 is inf; replace or drop such values and save again"), "{said}");
    assert!(all_rows(data.train.select(&[0])?.rows.as_ref()).is_ok());

    let dir = tempfile::tempdir()?;
    for (name, shape) in [("0.npy", [2, 2]), ("1.npy", [4, 1])] {
        std::fs::write(dir.path().join(name), npy("<f4", &shape, &f32s(&values(0..4, 1))))?;
    }
    assert_eq!(
        message(open_path(dir.path()), dir.path()),
        "DIR/1.npy: has rows of 1 value, the first shard of 2; give shards of one width"
    );
    std::fs::write(dir.path().join("1.npy"), &npy("<f4", &[4, 2], &f32s(&values(0..4, 2)))[..150])?;
    let said = message(open_with(dir.path(), stay()), dir.path());
    assert!(said.starts_with("DIR/1.npy: truncated: shape [4, 2] of <f4 needs more than the "), "{said}");
    let labels = DataOptions { labels: Some("y".to_owned()), ..stay() };
    std::fs::remove_file(dir.path().join("1.npy"))?;
    save(&dir.path().join("a.safetensors"), 0..3, 2, DType::F32)?;
    std::fs::remove_file(dir.path().join("0.npy"))?;
    assert_eq!(
        message(open_with(dir.path(), labels), dir.path()),
        "DIR: shards hold rows without labels, and nothing to choose by 'y'; leave out `DataOptions::labels`"
    );
    Ok(())
}

/// A parquet file of lists, which have these numbers of values.
fn lists(lengths: &[usize], bad: Option<usize>) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let n: usize = lengths.iter().sum();
    let mut values = values(0..n, 1);
    if let Some(bad) = bad {
        values[bad] = f32::NAN;
    }
    let repetitions = lengths.iter().flat_map(|&n| (0..n).map(|i| i16::from(i > 0))).collect();
    let schema = "message m { repeated float x; }";
    let groups = if n == 0 { vec![] } else { vec![vec![Leaf::Floats(values, vec![1; n], repetitions)]] };
    parquet(schema, None, &groups)
}

#[test]
fn lists_of_parquet_are_shards_too() -> TestResult {
    let dir = tempfile::tempdir()?;
    let write = |name: &str, bytes: Vec<u8>| std::fs::write(dir.path().join(name), bytes);
    write("train-0.parquet", lists(&[2, 2, 2], None)?)?;
    write("train-1.parquet", lists(&[2], None)?)?;
    let read = open_with(dir.path(), stay())?.train.to_tensor(&Device::Cpu)?.to_vec2::<f32>()?;
    assert_eq!(read, [[0., 1.], [2., 3.], [4., 5.], [0., 1.]]);
    let said = || message(open_with(dir.path(), stay()), dir.path());
    write("train-1.parquet", lists(&[3], None)?)?;
    assert_eq!(
        said(),
        "DIR/train-1.parquet, column 'x': row 0 has 3 values, the rows before 2; give vectors of one length, none missing"
    );
    write("train-1.parquet", lists(&[], None)?)?;
    assert_eq!(said(), "DIR/train-1.parquet: holds 0 rows; give at least one row");
    write("train-1.parquet", lists(&[2, 2], Some(3))?)?;
    assert_eq!(
        said(),
        "DIR/train-1.parquet: row 1, column 1 is NaN; replace or drop such values and save again"
    );
    let whole = lists(&[2, 2], None)?;
    write("train-1.parquet", whole[..whole.len() - 9].to_vec())?;
    assert!(said().starts_with("DIR/train-1.parquet: truncated or not a parquet file: "), "{}", said());
    Ok(())
}

/// 103 rows of bf16 in four shards.
fn shards(dir: &Path) -> chandlery_datasets::Result<Split> {
    for (i, rows) in [0..40, 40..41, 41..90, 90..103].into_iter().enumerate() {
        save(&dir.join(format!("{i}.safetensors")), rows, 5, DType::BF16)?;
    }
    Ok(open_with(dir, stay())?.train)
}

/// The rows of each minibatch that is left of an epoch, by their first values.
fn drain(feed: &mut Feed) -> chandlery_datasets::Result<Vec<Vec<f32>>> {
    let mut all = Vec::new();
    while let Some(minibatch) = feed.next()? {
        assert_eq!(minibatch.rows.dtype(), DType::BF16);
        let rows = minibatch.rows.to_dtype(DType::F32)?.to_vec2::<f32>()?;
        for row in &rows {
            assert_eq!(row[4], bf16::from_f32(row[0] + 1.).to_f32(), "another row");
        }
        all.push(rows.iter().map(|row| row[0]).collect());
    }
    Ok(all)
}

#[test]
fn minibatches_from_a_buffer_are_the_same_however_rows_travel_and_wherever_they_begin() -> TestResult {
    let dir = tempfile::tempdir()?;
    let split = shards(dir.path())?;
    for mix in [1, 20, 64, 200] {
        let config = FeedConfig { mix: Some(mix), ..FeedConfig::new(8, 3) };
        let mut resident = Feed::new(&split, &Device::Cpu, config.clone())?;
        for chunk_bytes in [1, 3 * 8 * 10, 1 << 20] {
            let streamed = FeedConfig { chunk_bytes, resident_bytes: None, ..config.clone() };
            let mut feed = Feed::new(&split, &Device::Cpu, streamed.clone())?;
            for epoch in [0, 1] {
                resident.start_epoch(epoch, 0)?;
                feed.start_epoch(epoch, 0)?;
                let want = drain(&mut resident)?;
                assert_eq!(drain(&mut feed)?, want, "mix {mix}, {chunk_bytes} bytes a chunk");
                let mut seen = want.concat();
                seen.sort_by(f32::total_cmp);
                assert_eq!(seen, (0..103).map(|i| i as f32).collect::<Vec<_>>(), "each row once");
                for skip in [1, 6, 12, 13] {
                    let mut fresh = Feed::new(&split, &Device::Cpu, streamed.clone())?;
                    fresh.start_epoch(epoch, skip)?;
                    assert_eq!(drain(&mut fresh)?, want[skip..], "mix {mix} after {skip}");
                }
            }
        }
    }
    // With a buffer for a few rows, those of a minibatch lie in few places.
    let mut feed = Feed::new(&split, &Device::Cpu, FeedConfig { mix: Some(64), ..FeedConfig::new(64, 3) })?;
    feed.start_epoch(0, 0)?;
    let mut first = drain(&mut feed)?.remove(0);
    first.sort_by(f32::total_cmp);
    let runs = first.windows(2).filter(|pair| pair[1] != pair[0] + 1.).count() + 1;
    assert!(runs <= 16, "{runs} pieces: {first:?}");
    let refused = Feed::new(&split, &Device::Cpu, FeedConfig { mix: Some(0), ..FeedConfig::new(8, 3) });
    assert!(matches!(refused, Err(Error::Argument(text)) if text == "Feed: mix must be at least 1, got 0"));
    Ok(())
}

#[test]
fn a_value_that_is_not_finite_ends_a_stream_with_the_name_of_its_file() -> TestResult {
    let dir = tempfile::tempdir()?;
    shards(dir.path())?;
    let path = dir.path().join("2.safetensors");
    let mut bytes = std::fs::read(&path)?;
    let end = bytes.len();
    bytes[end - 2..].copy_from_slice(&bf16::NAN.to_le_bytes());
    std::fs::write(&path, bytes)?;
    let split =
        Split { rows: Arc::clone(&open_with(dir.path(), stay())?.train.rows), labels: None, image: None };
    let config = FeedConfig { mix: Some(32), resident_bytes: None, chunk_bytes: 80, ..FeedConfig::new(8, 3) };
    let mut feed = Feed::new(&split, &Device::Cpu, config)?;
    feed.start_epoch(0, 0)?;
    assert_eq!(
        message(drain(&mut feed), dir.path()),
        "DIR/2.safetensors, tensor 'activations': row 48, column 4 is NaN; replace or drop such values and save again"
    );
    Ok(())
}
