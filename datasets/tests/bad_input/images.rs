//! Images whose headers say what their bytes cannot hold.
use super::folder_refusal;
use crate::common::*;
use std::io::{Cursor, Write};

#[test]
fn a_palette_on_which_the_decoder_panics_is_an_error() -> TestResult {
    // Colours 0 and 1 are looked up.
    let dir = tempfile::tempdir()?;
    std::fs::write(dir.path().join("a.png"), png_of_palette(&[9, 8, 7, 255, 0, 5])?)?;
    let rows = all_rows(open_path(dir.path())?.train.rows.as_ref())?;
    assert_eq!(rows, [9, 255, 255, 9, 8, 0, 0, 8, 7, 5, 5, 7]);
    for length in [0, 1, 2, 4, 5, 7, 47] {
        let text = folder_refusal(&[("a.png", png_of_palette(&vec![1; length])?)])?;
        assert!(text.starts_with("DIR/a.png: cannot be decoded as an image: "), "{length}: {text}");
        assert!(text.ends_with("; replace or remove it"), "{length}: {text}");
    }
    Ok(())
}

#[test]
fn an_image_larger_than_its_file_can_hold_is_refused_before_its_memory_is_taken() -> TestResult {
    let refusal = |bytes: usize| {
        format!(
            "DIR/a.image: cannot be decoded as an image: {bytes} bytes say that they are more than 32 MiB of pixels, or more than \
             65535 in a line or column; replace or remove it"
        )
    };
    let header = |side: u32| [&side.to_be_bytes()[..], &side.to_be_bytes(), &[8, 0, 0, 0, 0]].concat();
    let end = (b"IEND", vec![]);
    for side in [6_000, 60_000, 100_000, 0x7fff_ffff] {
        let png = png_of_chunks(&[(b"IHDR", header(side)), (b"IDAT", vec![0; 20]), end.clone()]);
        let want = refusal(png.len()).replace(".image", ".png");
        assert_eq!(folder_refusal(&[("a.png", png)])?, want, "{side}");
    }
    let mut jpeg = Cursor::new(Vec::new());
    image::GrayImage::from_pixel(16, 16, image::Luma([77])).write_to(&mut jpeg, image::ImageFormat::Jpeg)?;
    let mut jpeg = jpeg.into_inner();
    let frame = jpeg.windows(2).position(|marker| marker == [0xff, 0xc0]).ok_or("no frame header")?;
    jpeg[frame + 5..frame + 9].fill(0xff);
    let want = refusal(jpeg.len()).replace(".image", ".jpg");
    assert_eq!(folder_refusal(&[("a.jpg", jpeg)])?, want);
    Ok(())
}

#[test]
fn a_tiff_with_a_field_of_more_values_than_bytes_is_refused() -> TestResult {
    let grey = image::GrayImage::from_pixel(16, 16, image::Luma([77]));
    let mut whole = Cursor::new(Vec::new());
    grey.write_to(&mut whole, image::ImageFormat::Tiff)?;
    let whole = whole.into_inner();
    // The directory lies where the header says; its third field is of one value.
    let first = u32::from_le_bytes([whole[4], whole[5], whole[6], whole[7]]) as usize;
    let mut bytes = whole.clone();
    let count = first + 2 + 2 * 12 + 4;
    assert_eq!(bytes[count..count + 4], [1, 0, 0, 0]);
    bytes[count..count + 4].copy_from_slice(&0x0fff_ffffu32.to_le_bytes());
    assert_eq!(
        folder_refusal(&[("a.tif", bytes)])?,
        format!(
            "DIR/a.tif: cannot be decoded as an image: {} bytes say that a field of theirs has 268435455 values; replace or remove it",
            whole.len()
        )
    );
    let dir = tempfile::tempdir()?;
    std::fs::write(dir.path().join("a.tif"), whole)?;
    assert_eq!(all_rows(open_path(dir.path())?.train.rows.as_ref())?, [77; 256]);
    Ok(())
}

#[test]
fn a_blank_page_is_read_however_small_its_file() -> TestResult {
    let side = 6_000u32;
    let lines = vec![0; ((1 + side) * side) as usize];
    let mut pixels = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    pixels.write_all(&lines)?;
    let header = [&side.to_be_bytes()[..], &side.to_be_bytes(), &[8, 0, 0, 0, 0]].concat();
    let page = png_of_chunks(&[(b"IHDR", header), (b"IDAT", pixels.finish()?), (b"IEND", vec![])]);
    assert!(page.len() < 40_000, "{} bytes", page.len());
    let dir = tempfile::tempdir()?;
    std::fs::write(dir.path().join("a.png"), page)?;
    let data = open_path(dir.path())?;
    assert_eq!(data.n_features(), 36_000_000);
    Ok(())
}
