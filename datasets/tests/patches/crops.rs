//! Crops as a data set.
use chandlery_datasets::patches::{Image, ImageSet, PatchSampler};
use chandlery_datasets::{ImageShape, Result, Split};

/// Images of different sizes, each filled with its number.
fn numbered(n: u8) -> ImageSet {
    let image = |i: u8| {
        let shape = ImageShape::grey(6 + usize::from(i % 3), 9);
        Image::from_u8(format!("{i}"), shape, vec![i; shape.n_features()]).expect("an image")
    };
    ImageSet::new("set", (0..n).map(image).collect()).expect("a set")
}

fn values(split: &Split) -> Result<Vec<u8>> {
    let indices: Vec<u32> = (0..split.n_samples() as u32).collect();
    let mut bytes = vec![0; split.n_samples() * split.n_features()];
    split.rows.read_rows(&indices, &mut bytes)?;
    Ok(bytes)
}

#[test]
fn training_and_test_rows_come_from_different_images() -> Result<()> {
    let crops = numbered(25).into_crops((4, 5), 2000, 7)?;
    assert_eq!(crops.image(), Some(ImageShape::grey(4, 5)));
    let test = crops.test.expect("test rows");
    assert_eq!((crops.train.n_samples(), test.n_samples(), crops.train.n_features()), (2000, 200, 20));
    let (train, test) = (values(&crops.train)?, values(&test)?);
    assert!(test.iter().all(|image| [9, 19].contains(image)));
    assert!([9, 19].iter().all(|image| test.contains(image)));
    assert!(train.iter().all(|image| ![9, 19].contains(image)));
    assert!((0..25).filter(|image| ![9, 19].contains(image)).all(|image| train.contains(&image)));
    Ok(())
}

#[test]
fn few_images_leave_no_test_rows_and_more_crops_begin_with_the_same() -> Result<()> {
    let few = numbered(9).into_crops(3, 50, 1)?;
    assert!(few.test.is_none());
    let want = values(&PatchSampler::new(numbered(9), 3, 50, 1)?.into_split()?)?;
    assert_eq!(values(&few.train)?, want);
    let more = numbered(9).into_crops(3, 80, 1)?;
    assert_eq!(values(&more.train)?[..want.len()], want[..]);
    // Tens of millions take no memory.
    assert_eq!(numbered(30).into_crops(3, 50_000_000, 1)?.train.n_samples(), 50_000_000);
    Ok(())
}

#[test]
fn crops_larger_than_an_image_are_refused_with_its_name() {
    let err = numbered(12).into_crops(7, 50, 1).expect_err("too large").to_string();
    assert!(err.contains("image 0 is 6x9, smaller than a patch of 7x7"), "{err}");
    let err = numbered(12).into_crops(3, 0, 1).expect_err("none").to_string();
    assert!(err.contains("n_patches must be between 1 and"), "{err}");
}
