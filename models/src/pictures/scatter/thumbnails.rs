//! Images of rows at the points of their layout, each with a frame in the colour of its class.
//!
//! Points take turns in an order that mixes classes, in space the nearest first. An image is left
//! out where it would cover one that stands there: what is seen is whole, and where points are
//! dense, some of them stand for all.
use super::blend::Disc;
use super::colour;
use super::discs::{Points, canvas, placed};
use crate::pictures::tiles::shades_of;
use crate::pictures::{can_draw, mosaic};
use candle::{Device, Error, Result, Tensor};
use chandlery_datasets::{ImageShape, Preparation};
use chandlery_ops::arrays::gather_rows;
use image::imageops::{self, FilterType};
use image::{Rgb, RgbImage};
use plotters::prelude::RGBColor;
use std::collections::HashMap;

/// Rows whose images are made in one go.
const CHUNK: usize = 1024;
/// The smallest and the largest longer side of an image, in pixels.
pub const SIZES: std::ops::RangeInclusive<u32> = 4..=512;

/// Draws the images below a title on a picture of `side`×`side` pixels, with a legend where there
/// are labels; and says how many there are.
///
/// `rows` are raw rows of the points, `[n, height·width·channels]` u8 or float, which `shape` says
/// how to draw: floats outside of [0, 1] are stretched over their range, each image by itself. The
/// longer side of an image has `size` pixels, 4 to 512.
///
/// # Errors
/// When no point is finite, rows, classes and points differ in number, the rows are no images of
/// the shape, `size` is out of range, or `side` is below 200.
pub fn draw(
    points: &Points<'_>,
    rows: &Tensor,
    shape: ImageShape,
    title: &str,
    side: u32,
    size: u32,
) -> Result<(RgbImage, usize)> {
    let (mut picture, frame) = canvas(points, title, side)?;
    let n = points.classes.of.len();
    ensure!(can_draw(&shape), "thumbnails: images must have 1 or 3 channels, got {}", shape.channels);
    ensure!(
        rows.dims() == [n, shape.n_features()],
        "thumbnails: rows must have shape [{n}, {}] for images of {shape}, got {:?}",
        shape.n_features(),
        rows.dims()
    );
    ensure!(
        SIZES.contains(&size),
        "thumbnails: size must be {} to {} pixels, got {size}",
        SIZES.start(),
        SIZES.end()
    );
    let border = (size / 16).max(1);
    let longer = shape.width.max(shape.height).max(1) as f64;
    let pixels = |of: usize| ((of as f64 / longer * f64::from(size)).round() as u32).max(1);
    let inner = [pixels(shape.width), pixels(shape.height)];
    let outer = inner.map(|pixels| pixels + 2 * border);
    let mut discs = placed(points, &frame)?;
    if points.n_dims == 3 {
        discs.reverse();
    }
    let shown = apart(discs, outer, picture.dimensions());
    let shades = shades_of(rows)?;
    for some in shown.chunks(CHUNK) {
        let indices: Vec<u32> = some.iter().map(|(disc, _)| disc.index as u32).collect();
        let raw = gather_rows(&rows.contiguous()?, &indices)?.to_device(&Device::Cpu)?;
        // Bytes over 255.
        let raw = Preparation::default().apply(&raw).map_err(Error::wrap)?;
        // One column of tiles with gaps of one pixel.
        let tiles = mosaic(&raw, shape, 1, shades, 1)?;
        let (width, height) = (shape.width as u32, shape.height as u32);
        for (i, (disc, [left, top])) in some.iter().enumerate() {
            let tile = imageops::crop_imm(&tiles, 1, 1 + i as u32 * (height + 1), width, height).to_image();
            let how = if inner[0] < width { FilterType::Triangle } else { FilterType::Nearest };
            let tile = imageops::resize(&tile, inner[0], inner[1], how);
            let RGBColor(r, g, b) = colour(disc.class as usize);
            let framed = RgbImage::from_pixel(outer[0], outer[1], Rgb([r, g, b]));
            imageops::replace(&mut picture, &framed, (*left).into(), (*top).into());
            imageops::replace(&mut picture, &tile, (left + border).into(), (top + border).into());
        }
    }
    Ok((picture, shown.len()))
}

/// Those of the discs whose boxes of `width`×`height` pixels cover none before them, with the
/// upper left corners of their boxes, which lie in the picture.
fn apart(discs: Vec<Disc>, [width, height]: [u32; 2], (right, bottom): (u32, u32)) -> Vec<(Disc, [u32; 2])> {
    // Corners in cells of the size of a box: one that overlaps lies in a cell beside.
    let mut cells: HashMap<[u32; 2], Vec<[u32; 2]>> = HashMap::new();
    let mut shown = Vec::new();
    for disc in discs {
        let corner = |at: f64, size: u32, most: u32| {
            (at - f64::from(size) / 2.).round().clamp(0., f64::from(most.saturating_sub(size))) as u32
        };
        let at = [corner(disc.at[0], width, right), corner(disc.at[1], height, bottom)];
        let cell = [at[0] / width, at[1] / height];
        let near = |k: usize| cell[k].saturating_sub(1)..=cell[k] + 1;
        let mut beside =
            near(0).flat_map(|x| near(1).map(move |y| [x, y])).filter_map(|cell| cells.get(&cell));
        let covers = |other: &[u32; 2]| at[0].abs_diff(other[0]) < width && at[1].abs_diff(other[1]) < height;
        if !beside.any(|corners| corners.iter().any(covers)) {
            cells.entry(cell).or_default().push(at);
            shown.push((disc, at));
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::Classes;
    use super::*;

    const SHAPE: ImageShape = ImageShape::grey(2, 2);

    /// Row `i` is a grey of its own, but for a white pixel in the upper right.
    fn rows(n: usize) -> Tensor {
        let bytes: Vec<u8> = (0..n).flat_map(|i| [10 * i as u8, 255, 10 * i as u8, 10 * i as u8]).collect();
        Tensor::from_vec(bytes, (n, 4), &Device::Cpu).unwrap()
    }

    #[test]
    fn an_image_stands_at_its_point_in_the_colour_of_its_class() {
        let classes = Classes::new(3, Some(&[0, 1, 1]), None);
        let points = Points { positions: &[0., 0., 4., 0., 0., 4.], n_dims: 2, classes: &classes };
        let (picture, shown) = draw(&points, &rows(3), SHAPE, "", 400, 32).unwrap();
        assert_eq!(shown, 3);
        let (_, frame) = canvas(&points, "", 400).unwrap();
        for disc in placed(&points, &frame).unwrap() {
            let [x, y] = disc.at.map(|at| at.round() as u32);
            let at = |dx: i32, dy: i32| {
                picture.get_pixel(x.saturating_add_signed(dx), y.saturating_add_signed(dy)).0
            };
            let level = 10 * disc.index as u8;
            assert_eq!(
                [at(-8, -8), at(8, -8), at(8, 8)],
                [[level; 3], [255; 3], [level; 3]],
                "{}",
                disc.index
            );
            let RGBColor(r, g, b) = colour(disc.class as usize);
            assert_eq!(at(-17, 0), [r, g, b], "frame of {}", disc.index);
        }
    }

    #[test]
    fn no_image_covers_another_and_none_is_left_out_without_need() {
        let n = 400;
        let positions: Vec<f32> = (0..n).flat_map(|i| [(i * 37 % 101) as f32, (i * i % 89) as f32]).collect();
        let classes = Classes::new(n, None, None);
        let points = Points { positions: &positions, n_dims: 2, classes: &classes };
        let (picture, frame) = canvas(&points, "", 500).unwrap();
        let discs = || placed(&points, &frame).unwrap();
        let shown = apart(discs(), [24, 20], picture.dimensions());
        assert!(shown.len() > 50 && shown.len() < n, "{}", shown.len());
        let covers = |a: &[u32; 2], b: &[u32; 2]| a[0].abs_diff(b[0]) < 24 && a[1].abs_diff(b[1]) < 20;
        for (i, (_, a)) in shown.iter().enumerate() {
            assert!(a[0] + 24 <= 500 && a[1] + 20 <= 500, "{a:?} lies in the picture");
            assert!(shown[..i].iter().all(|(_, b)| !covers(a, b)), "{a:?} covers one before");
        }
        let alone = |disc: Disc| apart(vec![disc], [24, 20], picture.dimensions())[0].1;
        for disc in discs() {
            let (index, at) = (disc.index, alone(disc));
            let is_shown = shown.iter().any(|(shown, _)| shown.index == index);
            assert!(is_shown || shown.iter().any(|(_, b)| covers(&at, b)), "{index} is left out");
        }
    }

    #[test]
    fn what_cannot_be_drawn_is_refused() {
        let classes = Classes::new(2, None, None);
        let points = Points { positions: &[0., 0., 1., 1.], n_dims: 2, classes: &classes };
        let two = ImageShape { channels: 2, ..ImageShape::grey(1, 2) };
        for (rows, shape, size, text) in [
            (rows(3), SHAPE, 32, "rows must have shape [2, 4]"),
            (rows(2), two, 32, "images must have 1 or 3 channels, got 2"),
            (rows(2), SHAPE, 3, "size must be 4 to 512 pixels, got 3"),
        ] {
            let err = draw(&points, &rows, shape, "", 300, size).unwrap_err().to_string();
            assert!(err.contains(text), "{err}");
        }
    }
}
