use chandlery_datasets::embedded::{mnist_sample, natural_images};
use chandlery_datasets::{ImageShape, Result, RowType, Split};
use std::collections::HashSet;

fn bytes(split: &Split) -> Result<Vec<u8>> {
    let indices: Vec<u32> = (0..split.n_samples() as u32).collect();
    let mut bytes = vec![0; split.size_bytes()];
    split.rows.read_rows(&indices, &mut bytes)?;
    Ok(bytes)
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

#[test]
fn mnist_sample_is_balanced_in_every_prefix_and_repeats_no_digit() -> Result<()> {
    let digits = mnist_sample()?;
    let test = digits.test.as_ref().expect("a test split");
    assert_eq!(digits.image(), Some(ImageShape::grey(28, 28)));
    assert_eq!((digits.n_features(), digits.n_classes()), (784, 10));
    let mut seen = HashSet::new();
    for (split, n) in [(&digits.train, 5000), (test, 1000)] {
        assert_eq!((split.n_samples(), split.row_type()), (n, RowType::U8));
        let labels = split.labels.as_deref().expect("labels");
        assert!((0u32..).zip(labels).all(|(i, &label)| label == i % 10));
        seen.extend(bytes(split)?.chunks_exact(784).map(<[u8]>::to_owned));
    }
    assert_eq!(seen.len(), 6000);
    Ok(())
}

#[test]
fn mnist_sample_holds_the_bytes_that_its_script_made() -> Result<()> {
    let digits = mnist_sample()?;
    let test = digits.test.as_ref().expect("a test split");
    assert_eq!(crc32(&bytes(&digits.train)?), 0xb651_c8cb);
    assert_eq!(crc32(&bytes(test)?), 0xe8f1_aa0e);
    Ok(())
}

/// Share of test digits whose nearest class mean, of the training digits under `label_of(i)`, is
/// their own class.
fn accuracy_of_nearest_mean(label_of: impl Fn(usize) -> usize) -> Result<f64> {
    let digits = mnist_sample()?;
    let mut means = vec![[0f64; 784]; 10];
    for (i, row) in bytes(&digits.train)?.chunks_exact(784).enumerate() {
        for (mean, &pixel) in means[label_of(i)].iter_mut().zip(row) {
            *mean += f64::from(pixel) / 500.;
        }
    }
    let test = bytes(digits.test.as_ref().expect("a test split"))?;
    let distance = |mean: &[f64; 784], row: &[u8]| -> f64 {
        let terms = mean.iter().zip(row).map(|(m, &p)| (m - f64::from(p)).powi(2));
        terms.sum()
    };
    let right = test.chunks_exact(784).enumerate().filter(|(i, row)| {
        let distances: Vec<f64> = means.iter().map(|mean| distance(mean, row)).collect();
        (0..10).all(|c| distances[i % 10] <= distances[c])
    });
    Ok(right.count() as f64 / 1000.)
}

#[test]
fn mnist_sample_labels_belong_to_their_images() -> Result<()> {
    // Nearest class mean reads some 80 % of MNIST; with labels that say nothing, about 10 %.
    let with_labels = accuracy_of_nearest_mean(|i| i % 10)?;
    let with_others = accuracy_of_nearest_mean(|i| (i / 10) % 10)?;
    assert!(with_labels > 0.75, "{with_labels}");
    assert!(with_others < 0.3, "{with_others}");
    Ok(())
}

#[test]
fn natural_images_are_the_four_of_scikit_image() -> Result<()> {
    let set = natural_images()?;
    assert_eq!((set.name(), set.row_type()), ("natural-images", RowType::U8));
    let found: Vec<_> = set
        .images()
        .iter()
        .map(|image| {
            let pixels = image.to_f32();
            let bytes: Vec<u8> = pixels.iter().map(|p| (p * 255.).round() as u8).collect();
            (image.name(), image.height(), image.width(), crc32(&bytes))
        })
        .collect();
    let want = [
        ("camera", 512, 512, 0x59c2_562e),
        ("brick", 512, 512, 0x9862_cf44),
        ("grass", 512, 512, 0xce01_9aa2),
        ("gravel", 512, 512, 0x69d1_9efa),
    ];
    assert_eq!(found, want);
    Ok(())
}
