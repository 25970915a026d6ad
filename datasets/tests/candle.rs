//! What candle-datasets gives goes in, and comes out as it gives it. With the feature
//! `candle-datasets`.
#![cfg(feature = "candle-datasets")]
#![allow(clippy::unwrap_used)]
use crate::common::*;
use candle::{DType, Device::Cpu, Tensor};
use candle_datasets::Batcher;
use candle_datasets::vision;
use chandlery_datasets::{Dataset, Feed, FeedConfig, ImageShape, Split, embedded};

fn values(t: &Tensor) -> Vec<f32> {
    t.flatten_all().unwrap().to_dtype(DType::F32).unwrap().to_vec1().unwrap()
}

#[test]
fn data_sets_of_its_loaders_go_in_and_out() -> TestResult {
    // As its CIFAR: [n, channels, height, width] in [0, 1], labels u32.
    let images = |n: usize| Tensor::rand(0f32, 1., (n, 3, 4, 5), &Cpu);
    let labels = |n: u32| Tensor::arange(0, n, &Cpu);
    let theirs = vision::Dataset {
        train_images: images(6)?,
        train_labels: labels(6)?,
        test_images: images(2)?,
        test_labels: labels(2)?,
        labels: 6,
    };
    let ours = Dataset::from_candle("cifar", &theirs)?;
    assert_eq!(ours.image(), Some(ImageShape { height: 4, width: 5, channels: 3 }));
    let back = ours.to_candle()?;
    assert_eq!((back.labels, back.train_images.dims()), (6, theirs.train_images.dims()));
    for (a, b) in [
        (&back.train_images, &theirs.train_images),
        (&back.test_images, &theirs.test_images),
        (&back.train_labels, &theirs.train_labels),
        (&back.test_labels, &theirs.test_labels),
    ] {
        assert_eq!(values(a), values(b));
    }
    // As its MNIST: rows of no shape.
    let flat = vision::Dataset {
        train_images: images(6)?.flatten_from(1)?,
        test_images: images(2)?.flatten_from(1)?,
        ..theirs
    };
    assert_eq!(Dataset::from_candle("mnist", &flat)?.image(), None);
    Ok(())
}

#[test]
fn its_batcher_takes_samples_and_gives_what_a_feed_reads() -> TestResult {
    let digits = embedded::mnist_sample()?.train.take(50)?;
    let batcher =
        || Ok::<_, chandlery_datasets::Error>(Batcher::new_r2(digits.samples(&Cpu)?).batch_size(20));
    let theirs = batcher()?.collect::<candle::Result<Vec<_>>>()?;
    let ours = digits.batches(20, &Cpu)?.pairs().collect::<candle::Result<Vec<_>>>()?;
    // Without the last ten, which it leaves out.
    assert_eq!((theirs.len(), ours.len()), (2, 3));
    for ((x, y), (rows, labels)) in theirs.iter().zip(&ours) {
        assert_eq!((x.dims(), y.dims()), (rows.dims(), labels.dims()));
        assert_eq!((values(x), values(y)), (values(rows), values(labels)));
    }
    let split = Split::from_batches(batcher()?.return_last_incomplete_batch(true))?;
    let mut feed = Feed::new(&split, &Cpu, FeedConfig::in_order(50))?;
    let all = feed.epoch(0)?.next().ok_or("one")??;
    assert_eq!(values(&all.rows), values(&digits.to_tensor(&Cpu)?));
    Ok(())
}
