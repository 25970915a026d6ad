//! Pictures one after the other as an animated GIF, of one palette: what has a colour keeps it from
//! picture to picture.
use candle::{Error, Result};
use chandlery_datasets::whole::write_whole;
use color_quant::NeuQuant;
use gif::{Encoder, Frame, Repeat};
use image::{Rgb, RgbImage};
use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

/// How long each picture is seen, and the last one.
const EACH: Duration = Duration::from_millis(120);
const LAST: Duration = Duration::from_millis(2500);

/// Colours of a palette, and those of them that are the most frequent ones as they are: the ground,
/// letters and legend.
const COLOURS: usize = 256;
const EXACT: usize = 96;
/// How the others are chosen, 1 (best) to 30 (fastest).
const SPEED: i32 = 10;

/// Writes an animation of `n` pictures that repeats; `frame` makes each, and is asked for each
/// twice: for its colours, and to be written. The last one stays for longer.
///
/// # Errors
/// When `n` is 0, a picture cannot be made, they differ in size, or the disk refuses.
pub fn write_gif(path: &Path, n: usize, mut frame: impl FnMut(usize) -> Result<RgbImage>) -> Result<()> {
    ensure!(n > 0, "animation: there must be at least 1 picture, got none");
    let mut counts: HashMap<[u8; 3], u64> = HashMap::new();
    let mut size = None;
    for i in 0..n {
        let picture = frame(i)?;
        let (first, got) = (*size.get_or_insert(picture.dimensions()), picture.dimensions());
        ensure!(first == got, "animation: pictures must be {first:?} as the first one, got {got:?}");
        picture.pixels().for_each(|Rgb(colour)| *counts.entry(*colour).or_default() += 1);
    }
    let (width, height) = size.unwrap_or_default();
    let too_large =
        || format!("animation: pictures must be at most 65535 pixels wide and high, got {width}x{height}");
    let side = |pixels: u32| u16::try_from(pixels).map_err(|_| Error::Msg(too_large()));
    let (width, height) = (side(width)?, side(height)?);
    let palette = Palette::of(&counts);
    drop(counts);
    write_whole(path, |file| {
        let mut encoder =
            Encoder::new(file, width, height, &palette.colours.concat()).map_err(Error::wrap)?;
        encoder.set_repeat(Repeat::Infinite).map_err(Error::wrap)?;
        for i in 0..n {
            let pixels: Vec<u8> = frame(i)?.pixels().map(|Rgb(colour)| palette.index(*colour)).collect();
            let delay = if i + 1 == n { LAST } else { EACH };
            let mut picture = Frame::from_indexed_pixels(width, height, pixels, None);
            picture.delay = (delay.as_millis() / 10) as u16;
            encoder.write_frame(&picture).map_err(Error::wrap)?;
        }
        Ok(())
    })
}

/// Colours, and the place among them of each colour that occurs.
struct Palette {
    colours: Vec<[u8; 3]>,
    places: HashMap<[u8; 3], u8>,
}

impl Palette {
    /// All colours that occur where there are few enough, else the most frequent ones and some
    /// between the others.
    fn of(counts: &HashMap<[u8; 3], u64>) -> Self {
        let mut by_count: Vec<([u8; 3], u64)> =
            counts.iter().map(|(&colour, &count)| (colour, count)).collect();
        by_count.sort_unstable_by_key(|&(colour, count)| (std::cmp::Reverse(count), colour));
        let all: Vec<[u8; 3]> = by_count.into_iter().map(|(colour, _)| colour).collect();
        let exact = if all.len() <= COLOURS { all.len() } else { EXACT };
        let (kept, others) = all.split_at(exact);
        let mut colours = kept.to_vec();
        let mut places: HashMap<[u8; 3], u8> =
            (0u8..).zip(kept).map(|(place, &colour)| (colour, place)).collect();
        if !others.is_empty() {
            let pixels: Vec<u8> = others.iter().flat_map(|&[r, g, b]| [r, g, b, 255]).collect();
            let chosen = NeuQuant::new(SPEED, COLOURS - exact, &pixels);
            colours.extend(chosen.color_map_rgb().chunks_exact(3).map(|rgb| [rgb[0], rgb[1], rgb[2]]));
            let place = |&[r, g, b]: &[u8; 3]| (exact + chosen.index_of(&[r, g, b, 255])) as u8;
            places.extend(others.iter().map(|colour| (*colour, place(colour))));
        }
        Self { colours, places }
    }

    /// The place of a colour that occurs.
    fn index(&self, colour: [u8; 3]) -> u8 {
        self.places.get(&colour).copied().unwrap_or(0)
    }
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
    #[test]
    fn a_colour_is_the_same_in_every_picture() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.gif");
        // A legend above noise of far more colours than a palette has, other ones in each picture.
        let legend = [[78, 121, 167], [242, 142, 43], [225, 87, 89], [40, 40, 40]];
        let picture = |i: usize| {
            RgbImage::from_fn(64, 64, |x, y| match y < 8 {
                true => Rgb(legend[x as usize / 16]),
                false => Rgb([(x * 4) as u8, (y * 4) as u8, (i * 60 + (x ^ y) as usize) as u8]),
            })
        };
        write_gif(&path, 4, |i| Ok(picture(i))).unwrap();
        let decoder = GifDecoder::new(BufReader::new(File::open(&path).unwrap())).unwrap();
        let frames = decoder.into_frames().collect_frames().unwrap();
        let mut apart = 0.;
        for (i, frame) in frames.iter().enumerate() {
            for (k, [r, g, b]) in legend.into_iter().enumerate() {
                let at = frame.buffer().get_pixel(16 * k as u32 + 3, 4).0;
                assert_eq!(at, [r, g, b, 255], "picture {i}");
            }
            for (drawn, Rgb(want)) in frame.buffer().pixels().zip(picture(i).pixels()) {
                apart += (0..3).map(|c| f64::from(drawn.0[c].abs_diff(want[c]))).sum::<f64>();
            }
        }
        // Others are near: 160 colours for a cube of 256 levels a side.
        let mean = apart / (4. * 64. * 64. * 3.);
        assert!(mean < 16., "{mean} levels apart");
    }
}
