//! idx files: wrong, truncated, packed badly, or at odds with each other.
use super::{folder_refusal, refusal};
use crate::common::*;

#[test]
fn idx_with_a_wrong_magic_number() -> TestResult {
    for (name, bytes) in [
        ("x-ubyte", idx(0x0000_0D03, &[1, 1, 1], &[0; 4])),
        ("x-ubyte.gz", gz(&idx(0x0000_0D03, &[1, 1, 1], &[0; 4]))?),
    ] {
        assert_eq!(
            refusal(name, &bytes)?,
            format!(
                "DIR/{name}: wrong magic number 0x00000d03, want 0x00000803 for images; give an idx file of unsigned bytes"
            )
        );
    }
    let labels = ("train-labels-idx1-ubyte", idx(0x803, &[1, 1, 1], &[0]));
    let images = ("train-images-idx3-ubyte", idx(0x803, &[1, 1, 1], &[0]));
    assert_eq!(
        folder_refusal(&[labels, images])?,
        "DIR/train-labels-idx1-ubyte: wrong magic number 0x00000803, want 0x00000801 for labels; give an idx file of \
         unsigned bytes"
    );
    Ok(())
}

#[test]
fn idx_whose_header_says_more_than_the_file_holds() -> TestResult {
    let bytes = idx(0x803, &[3, 2, 2], &[0; 11]);
    assert_eq!(
        refusal("x-ubyte", &bytes)?,
        "DIR/x-ubyte: truncated: 3 rows of 4 values need 12 bytes, the file has 11; copy or make the file again"
    );
    assert_eq!(
        refusal("x-ubyte.gz", &gz(&bytes)?)?,
        "DIR/x-ubyte.gz: truncated: the header says 3 rows of 4 bytes, 11 bytes are there; download or copy the file again"
    );
    // Far more than any memory: refused without an attempt to allocate it.
    let bytes = idx(0x803, &[u32::MAX, u32::MAX, u32::MAX], &[0; 11]);
    assert_eq!(
        refusal("x-ubyte.gz", &gz(&bytes)?)?,
        "DIR/x-ubyte.gz: wrong header: sizes [4294967295, 4294967295, 4294967295] are beyond any file; download or copy \
         the file again"
    );
    Ok(())
}

#[test]
fn idx_with_more_than_its_header_says() -> TestResult {
    let bytes = gz(&idx(0x803, &[1, 2, 2], &[0; 5]))?;
    assert_eq!(
        refusal("x-ubyte.gz", &bytes)?,
        "DIR/x-ubyte.gz: more bytes than the 1 row of 4 that its header says; download or copy the file again"
    );
    Ok(())
}

#[test]
fn idx_without_rows() -> TestResult {
    assert_eq!(
        refusal("x-ubyte", &idx(0x803, &[0, 2, 2], &[]))?,
        "DIR/x-ubyte: holds 0 rows of 4 values; give at least one row of at least one value"
    );
    Ok(())
}

#[test]
fn truncated_gzip() -> TestResult {
    let values: Vec<u8> = (0..4000u32).map(|i| (i * i % 251) as u8).collect();
    let whole = gz(&idx(0x803, &[1000, 2, 2], &values))?;
    assert_eq!(
        refusal("x-ubyte.gz", &whole[..whole.len() / 2])?,
        "DIR/x-ubyte.gz: truncated: the compressed data ends early; download or copy the file again"
    );
    // Wherever it is cut, and in its checksum too.
    for length in (0..whole.len()).step_by(7).chain(whole.len() - 8..whole.len()) {
        let text = refusal("x-ubyte.gz", &whole[..length])?;
        assert!(text.starts_with("DIR/x-ubyte.gz: truncated: "), "{length} bytes: {text}");
    }
    Ok(())
}

#[test]
fn gzip_that_is_none_or_is_damaged() -> TestResult {
    assert_eq!(
        refusal("x-ubyte.gz", b"<html>not found</html>")?,
        "DIR/x-ubyte.gz: cannot be unpacked: invalid gzip header; download or copy the file again"
    );
    let mut whole = gz(&idx(0x803, &[1, 2, 2], &[1, 2, 3, 4]))?;
    let checksum = whole.len() - 8;
    whole[checksum] ^= 1;
    assert_eq!(
        refusal("x-ubyte.gz", &whole)?,
        "DIR/x-ubyte.gz: cannot be unpacked: corrupt gzip stream does not have a matching checksum; download or copy the \
         file again"
    );
    Ok(())
}

#[test]
fn labels_and_images_that_disagree_in_number() -> TestResult {
    for packed in [false, true] {
        let pack = |name: &'static str, bytes: Vec<u8>| -> std::io::Result<(String, Vec<u8>)> {
            Ok(match packed {
                true => (format!("{name}.gz"), gz(&bytes)?),
                false => (name.to_owned(), bytes),
            })
        };
        let images = pack("train-images-idx3-ubyte", idx(0x803, &[2, 1, 1], &[0, 0]))?;
        let labels = pack("train-labels-idx1-ubyte", idx(0x801, &[3], &[0, 0, 0]))?;
        let text = folder_refusal(&[(&images.0, images.1), (&labels.0, labels.1)])?;
        assert_eq!(
            text,
            format!(
                "DIR/{} and DIR/{}: 3 labels for 2 rows; both must describe the same samples",
                images.0, labels.0
            )
        );
    }
    Ok(())
}

#[test]
fn idx_folder_without_training_images() -> TestResult {
    assert_eq!(
        folder_refusal(&[("t10k-images-idx3-ubyte", idx(0x803, &[1, 1, 1], &[0]))])?,
        "DIR: holds idx files, but no training images; add train-images-idx3-ubyte or train-images-idx3-ubyte.gz, or choose a file \
         by `DataOptions::train_split`"
    );
    Ok(())
}
