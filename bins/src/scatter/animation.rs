//! Pictures one after the other as an animated GIF.
use anyhow::{Result, ensure};
use chandlery_datasets::whole::write_whole;
use image::codecs::gif::{GifEncoder, Repeat};
use image::{Delay, DynamicImage, Frame, RgbImage};
use std::path::Path;
use std::time::Duration;

/// How long each picture is seen, and the last one.
const EACH: Duration = Duration::from_millis(120);
const LAST: Duration = Duration::from_millis(2500);

/// How the encoder chooses the 256 colours of a picture, 1 (best) to 30 (fastest).
const SPEED: i32 = 10;

/// Writes an animation of `n` pictures that repeats; `frame` makes each. The last one stays for longer.
///
/// # Errors
/// When `n` is 0, a picture cannot be made, they differ in size, or the disk refuses.
pub fn write_gif(path: &Path, n: usize, mut frame: impl FnMut(usize) -> Result<RgbImage>) -> Result<()> {
    ensure!(n > 0, "animation: there must be at least 1 picture, got none");
    write_whole(path, |file| {
        let mut encoder = GifEncoder::new_with_speed(file, SPEED);
        encoder.set_repeat(Repeat::Infinite)?;
        let mut size = None;
        for i in 0..n {
            let picture = frame(i)?;
            let (first, got) = (*size.get_or_insert(picture.dimensions()), picture.dimensions());
            ensure!(first == got, "animation: pictures must be {first:?} as the first one, got {got:?}");
            let delay = Delay::from_saturating_duration(if i + 1 == n { LAST } else { EACH });
            let pixels = DynamicImage::ImageRgb8(picture).into_rgba8();
            encoder.encode_frame(Frame::from_parts(pixels, 0, 0, delay))?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use image::{AnimationDecoder, Rgb, codecs::gif::GifDecoder};
    use std::fs::File;
    use std::io::BufReader;

    #[test]
    fn every_picture_comes_back_in_turn_and_the_last_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.gif");
        let shades = [[255, 0, 0], [0, 255, 0], [0, 0, 255]];
        write_gif(&path, 3, |i| Ok(RgbImage::from_pixel(8, 6, Rgb(shades[i])))).unwrap();
        let decoder = GifDecoder::new(BufReader::new(File::open(&path).unwrap())).unwrap();
        let frames = decoder.into_frames().collect_frames().unwrap();
        assert_eq!(frames.len(), 3);
        for (frame, [r, g, b]) in frames.iter().zip(shades) {
            assert_eq!(frame.buffer().get_pixel(3, 3).0, [r, g, b, 255]);
        }
        let ms = |i: usize| frames[i].delay().numer_denom_ms().0;
        assert!(ms(2) > 10 * ms(0) && ms(0) == ms(1), "{} {}", ms(0), ms(2));
        let uneven = write_gif(&path, 2, |i| Ok(RgbImage::new(4 + i as u32, 4))).unwrap_err();
        assert!(format!("{uneven:#}").contains("must be (4, 4) as the first one, got (5, 4)"), "{uneven:#}");
        assert!(write_gif(&path, 0, |_| Ok(RgbImage::new(4, 4))).is_err());
    }
}
