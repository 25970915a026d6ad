//! A plotting surface of pixels whose letters come with the crate.
//!
//! Letters of an SVG are drawn by its viewer; those of a PNG need a font, and a machine without a
//! screen often has none. Here all text of a plot has one size, Noto Sans Mono of 16 pixels,
//! whatever is asked for; [`write_text`] has a larger one, too.
use image::{GrayImage, Luma, Rgb, RgbImage};
use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};
use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{
    BackendColor, BackendCoord, BackendTextStyle, DrawingBackend, DrawingErrorKind, FontTransform,
};
use std::convert::Infallible;

const WEIGHT: FontWeight = FontWeight::Regular;

/// How high letters are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Letters {
    /// 16 pixels.
    Small,
    /// 24 pixels.
    Large,
}

impl Letters {
    fn raster(self) -> RasterHeight {
        match self {
            Self::Small => RasterHeight::Size16,
            Self::Large => RasterHeight::Size24,
        }
    }

    /// Width and height of a line of text, in pixels.
    pub fn size_of(self, text: &str) -> (i32, i32) {
        let width = get_raster_width(WEIGHT, self.raster()) as i32;
        (text.chars().count() as i32 * width, self.raster().val() as i32)
    }
}

/// Stands for a letter that the font lacks.
const UNKNOWN: char = '?';

/// Draws on a picture.
#[derive(Debug)]
pub struct Raster<'a> {
    picture: &'a mut RgbImage,
}

impl<'a> Raster<'a> {
    /// A surface of the picture's size.
    pub fn new(picture: &'a mut RgbImage) -> Self {
        Self { picture }
    }

    fn blend(&mut self, (x, y): BackendCoord, colour: BackendColor) {
        let (Ok(x), Ok(y)) = (u32::try_from(x), u32::try_from(y)) else {
            return;
        };
        if x >= self.picture.width() || y >= self.picture.height() {
            return;
        }
        let (r, g, b) = colour.rgb;
        let Rgb(under) = *self.picture.get_pixel(x, y);
        let mix = |over: u8, under: u8| {
            (colour.alpha * f64::from(over) + (1. - colour.alpha) * f64::from(under)).round() as u8
        };
        self.picture.put_pixel(x, y, Rgb([mix(r, under[0]), mix(g, under[1]), mix(b, under[2])]));
    }
}

type Drawn = Result<(), DrawingErrorKind<Infallible>>;

impl DrawingBackend for Raster<'_> {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        self.picture.dimensions()
    }

    fn ensure_prepared(&mut self) -> Drawn {
        Ok(())
    }

    fn present(&mut self) -> Drawn {
        Ok(())
    }

    fn draw_pixel(&mut self, point: BackendCoord, colour: BackendColor) -> Drawn {
        self.blend(point, colour);
        Ok(())
    }

    fn draw_text<S: BackendTextStyle>(&mut self, text: &str, style: &S, pos: BackendCoord) -> Drawn {
        let (width, height) = Letters::Small.size_of(text);
        let anchor = style.anchor();
        let dx = match anchor.h_pos {
            HPos::Left => 0,
            HPos::Right => -width,
            HPos::Center => -width / 2,
        };
        let dy = match anchor.v_pos {
            VPos::Top => 0,
            VPos::Center => -height / 2,
            VPos::Bottom => -height,
        };
        let (turn, colour) = (style.transform(), style.color());
        letters(text, Letters::Small, |x, y, ink| {
            let (x, y) = turn.transform(dx + x, dy + y);
            let alpha = colour.alpha * f64::from(ink) / 255.;
            self.blend((pos.0 + x, pos.1 + y), BackendColor { alpha, ..colour });
        });
        Ok(())
    }

    fn estimate_text_size<S: BackendTextStyle>(
        &self,
        text: &str,
        style: &S,
    ) -> Result<(u32, u32), DrawingErrorKind<Infallible>> {
        let (width, height) = Letters::Small.size_of(text);
        let (width, height) = (width.unsigned_abs(), height.unsigned_abs());
        Ok(match style.transform() {
            FontTransform::Rotate90 | FontTransform::Rotate270 => (height, width),
            FontTransform::None | FontTransform::Rotate180 => (width, height),
        })
    }
}

/// A line of text, black on white: 16 pixels high and as wide as its letters, at least one pixel.
pub fn line_of_text(text: &str) -> GrayImage {
    let (width, height) = Letters::Small.size_of(text);
    let mut picture = GrayImage::from_pixel(width.max(1).unsigned_abs(), height.unsigned_abs(), Luma([255]));
    letters(text, Letters::Small, |x, y, ink| {
        if let Some(pixel) = picture.get_pixel_mut_checked(x.unsigned_abs(), y.unsigned_abs()) {
            *pixel = Luma([255 - ink]);
        }
    });
    picture
}

/// Writes a line of text whose upper left is `(x, y)`; what lies outside of the picture is left
/// out.
pub fn write_text(picture: &mut RgbImage, (x, y): (i32, i32), text: &str, size: Letters, rgb: [u8; 3]) {
    let (r, g, b) = rgb.into();
    let mut surface = Raster::new(picture);
    letters(text, size, |dx, dy, ink| {
        let alpha = f64::from(ink) / 255.;
        surface.blend((x + dx, y + dy), BackendColor { alpha, rgb: (r, g, b) });
    });
}

/// Calls `paint` with place and ink, 0 to 255, of every pixel of every letter; the upper left of
/// the text is (0, 0).
fn letters(text: &str, size: Letters, mut paint: impl FnMut(i32, i32, u8)) {
    let raster_of = |letter| get_raster(letter, WEIGHT, size.raster());
    for (i, letter) in text.chars().enumerate() {
        let Some(raster) = raster_of(letter).or_else(|| raster_of(UNKNOWN)) else {
            continue;
        };
        let left = (i * raster.width()) as i32;
        for (y, line) in raster.raster().iter().enumerate() {
            for (x, &ink) in line.iter().enumerate() {
                paint(left + x as i32, y as i32, ink);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use plotters::prelude::*;
    use plotters::style::text_anchor::Pos;

    #[test]
    fn text_leaves_ink_where_it_is_anchored_and_nowhere_else() {
        let mut picture = RgbImage::from_pixel(60, 40, Rgb([255; 3]));
        {
            let mut surface = Raster::new(&mut picture);
            let style = TextStyle::from(("sans-serif", 12)).pos(Pos::new(HPos::Right, VPos::Top));
            surface.draw_text("HH", &style, (50, 10)).unwrap();
        }
        let ink = |x: std::ops::Range<u32>, y: std::ops::Range<u32>| {
            x.flat_map(|x| y.clone().map(move |y| (x, y))).any(|(x, y)| picture.get_pixel(x, y).0[0] < 128)
        };
        assert!(ink(34..50, 10..26), "no ink");
        assert!(!ink(50..60, 0..40) && !ink(0..33, 0..40) && !ink(0..60, 0..10), "ink outside");
    }

    #[test]
    fn a_line_of_text_is_black_on_white_and_as_wide_as_its_letters() {
        let [one, two] = ["H", "HH"].map(line_of_text);
        assert_eq!((two.width(), two.height()), (2 * one.width(), 16));
        assert!(one.pixels().any(|pixel| pixel.0[0] < 128) && one.pixels().any(|pixel| pixel.0[0] == 255));
        for (x, y, pixel) in two.enumerate_pixels() {
            assert_eq!(pixel, one.get_pixel(x % one.width(), y), "at {x}, {y}");
        }
    }

    #[test]
    fn text_is_written_in_its_colour_at_both_sizes_and_cut_off_at_the_edge() {
        for (size, height) in [(Letters::Small, 16), (Letters::Large, 24)] {
            let mut picture = RgbImage::from_pixel(40, 40, Rgb([255; 3]));
            write_text(&mut picture, (10, 10), "HHHHH", size, [255, 0, 0]);
            let mut inked = picture.enumerate_pixels().filter(|(.., pixel)| pixel.0[1] < 128);
            assert!(inked.clone().next().is_some() && inked.clone().any(|(x, ..)| x > 36), "{size:?}");
            assert!(
                inked.all(|(x, y, pixel)| x >= 10 && (10..10 + height).contains(&y) && pixel.0[0] == 255)
            );
            assert_eq!(size.size_of("HHHHH").1 as u32, height);
        }
    }

    #[test]
    fn pixels_outside_are_left_out_and_colours_blend() {
        let mut picture = RgbImage::from_pixel(2, 2, Rgb([100; 3]));
        let mut surface = Raster::new(&mut picture);
        let half = BackendColor { alpha: 0.5, rgb: (200, 0, 100) };
        for point in [(0, 0), (-1, 0), (2, 0), (0, 9)] {
            surface.draw_pixel(point, half).unwrap();
        }
        assert_eq!(picture.get_pixel(0, 0), &Rgb([150, 50, 100]));
        assert_eq!(picture.get_pixel(1, 1), &Rgb([100; 3]));
    }
}
