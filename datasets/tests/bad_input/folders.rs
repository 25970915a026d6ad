//! Folders: images that cannot be read together, splits and classes that are not there.
use super::folder_refusal;
use crate::common::*;
use chandlery_datasets::DataOptions;

#[test]
fn an_image_that_cannot_be_decoded() -> TestResult {
    assert_eq!(
        folder_refusal(&[("a.png", b"not a png".to_vec())])?,
        "DIR/a.png: cannot be decoded as an image: The image format could not be determined; replace or remove it"
    );
    let pixels: Vec<u8> = (0..900u32).map(|i| (i * i % 255) as u8).collect();
    let whole = png(30, 30, &pixels)?;
    // Cut within the last chunk, which only says that there are no more, the pixels are all there.
    for length in (0..whole.len() - 24).step_by(5) {
        let text = folder_refusal(&[("a.png", whole[..length].to_vec())])?;
        assert!(text.starts_with("DIR/a.png: cannot be decoded as an image: "), "{length} bytes: {text}");
        assert!(text.ends_with("; replace or remove it"), "{length} bytes: {text}");
    }
    Ok(())
}

#[test]
fn images_of_different_shapes() -> TestResult {
    assert_eq!(
        folder_refusal(&[("a.png", png(2, 3, &[0; 6])?), ("b.png", png(3, 2, &[0; 6])?)])?,
        "DIR/b.png: is 3x2x1 but DIR/a.png is 2x3x1 (height x width x channels); make all images of a data set the same, \
         or draw patches from them instead"
    );
    assert_eq!(
        folder_refusal(&[("a.png", png(1, 1, &[0])?), ("b.png", png_rgb(1, 1, &[0; 3])?)])?,
        "DIR/b.png: is 1x1x3 but DIR/a.png is 1x1x1 (height x width x channels); make all images of a data set the same, \
         or draw patches from them instead"
    );
    assert_eq!(
        folder_refusal(&[("train/a.png", png(2, 3, &[0; 6])?), ("test/a.png", png(3, 2, &[0; 6])?)])?,
        "DIR: training images are 2x3x1, test images 3x2x1 (height x width x channels); make all images of a data set the \
         same"
    );
    Ok(())
}

#[test]
fn images_both_in_a_folder_and_in_its_sub_folders() -> TestResult {
    let image = png(1, 1, &[0])?;
    let file = |name| (name, image.clone());
    let want = "holds images both itself (a.png) and in sub-folders (cat); move them all into sub-folders, one for each \
                class, or all into the folder";
    // Below a class too.
    for inside in ["cat/b.png", "cat/young/b.png"] {
        assert_eq!(folder_refusal(&[file("a.png"), file(inside)])?, format!("DIR: {want}"));
    }
    assert_eq!(
        folder_refusal(&[file("train/a.png"), file("train/cat/b.png")])?,
        format!("DIR/train: {want}")
    );
    // Without a split for training, one for tests would be overlooked.
    let text = folder_refusal(&[file("a.png"), file("test/b.png")])?;
    assert!(text.contains("and in sub-folders (test)"), "{text}");
    Ok(())
}

#[test]
fn a_class_that_only_the_test_images_have() -> TestResult {
    let image = png(1, 1, &[0])?;
    assert_eq!(
        folder_refusal(&[("train/cat/a.png", image.clone()), ("test/dog/a.png", image)])?,
        "DIR/test: no class 'dog'; there are: cat"
    );
    Ok(())
}

#[test]
fn empty_folders() -> TestResult {
    let want = "holds no images, idx files, parquet files, tables or arrays; images end in one of png, jpg, jpeg, bmp, tif, tiff, webp, \
                gif, pgm, ppm, pbm, pnm";
    assert_eq!(folder_refusal(&[])?, format!("DIR: {want}"));
    assert_eq!(folder_refusal(&[("notes.txt", vec![]), (".hidden.png", vec![])])?, format!("DIR: {want}"));
    assert_eq!(folder_refusal(&[("train/notes.txt", vec![])])?, format!("DIR/train: {want}"));
    Ok(())
}

#[test]
fn a_split_folder_that_is_not_there() -> TestResult {
    let dir = tempfile::tempdir()?;
    std::fs::create_dir(dir.path().join("train"))?;
    std::fs::write(dir.path().join("train/a.png"), png(1, 1, &[0])?)?;
    let options = DataOptions { test_split: Some("held".to_owned()), ..DataOptions::default() };
    assert_eq!(message(open_with(dir.path(), options), dir.path()), "DIR: no split 'held'; there are: train");
    Ok(())
}
