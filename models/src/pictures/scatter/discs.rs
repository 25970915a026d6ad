//! Points in the plane or in space as small discs on a white square, coloured by class; very many
//! as a density picture.
use super::blend::{Blot, Disc, blend};
use super::{Classes, colour, density};
use crate::pictures::raster::{Letters, write_text};
use candle::Result;
use image::{Rgb, RgbImage};
use plotters::prelude::RGBColor;
use rayon::prelude::*;

/// Points to draw.
#[derive(Debug, Clone, Copy)]
pub struct Points<'a> {
    /// Coordinates, point by point: `[n, n_dims]`; points that are not finite are left out.
    pub positions: &'a [f32],
    /// 2, or 3 for a view from one side with what is far paler.
    pub n_dims: usize,
    /// Their classes.
    pub classes: &'a Classes,
}

/// Where the plot lies on the picture, in pixels.
pub(super) struct Frame {
    left: f64,
    top: f64,
    side: f64,
}

const MARGIN: i32 = 16;
const INK: [u8; 3] = [40, 40, 40];
/// Class names stand in the plot only where there are at most so many.
const MOST_NAMES: usize = 30;
/// Characters of a name in the legend.
const NAME_CHARS: usize = 14;

/// Draws the points below a title, on a picture of `side`×`side` pixels; where there are labels, a
/// legend stands on the right and, in the plane, each name where its class is densest.
///
/// From 100,000 finite points on it shows densities: a pixel has the colours of its classes, mixed by
/// how many points of each cover it, and is darker the more there are, by the logarithm; without
/// labels along a scale of colours whose lightness falls evenly. In space all points show through,
/// what is far fainter.
///
/// # Errors
/// When no point is finite, there are not as many classes as points, `n_dims` is neither 2 nor 3,
/// or `side` is below 200.
pub fn draw(points: &Points<'_>, title: &str, side: u32) -> Result<RgbImage> {
    let Points { n_dims, classes, .. } = *points;
    let (mut picture, frame) = canvas(points, title, side)?;
    let mut discs = places(points, &frame)?;
    let spacing = frame.side / (discs.len() as f64).sqrt();
    let zoom = (f64::from(side) / 1200.).max(0.7);
    let fog = |disc: &Disc| if n_dims == 3 { 0.3 + 0.7 * disc.depth } else { 1. };
    if discs.len() >= density::LEAST {
        let colours: Vec<_> = (0..classes.names.len()).map(rgb).collect();
        let colours = classes.labelled.then_some(&colours[..]);
        density::draw(&mut picture, density::RADIUS * zoom, &discs, colours, fog);
    } else {
        in_turn(&mut discs, n_dims);
        let opacity = if discs.len() > 20_000 { 0.5 } else { 0.7 };
        let blot =
            |disc: &Disc| Blot { at: disc.at, rgb: rgb(disc.class as usize), opacity: opacity * fog(disc) };
        let blots: Vec<Blot> = discs.iter().map(blot).collect();
        blend(&mut picture, (0.2 * spacing).clamp(1.2, 5.) * zoom, &blots);
    }
    if classes.labelled && n_dims == 2 && classes.names.len() <= MOST_NAMES {
        write_names(&mut picture, &discs, &frame, classes, letters_for(side));
    }
    Ok(picture)
}

/// The colour of a class.
fn rgb(class: usize) -> [u8; 3] {
    let RGBColor(r, g, b) = colour(class);
    [r, g, b]
}

/// Letters of a picture of this side.
fn letters_for(side: u32) -> Letters {
    if side >= 1000 { Letters::Large } else { Letters::Small }
}

/// A white picture with the title and, where there are labels, the legend; and where the plot lies.
///
/// # Errors
/// As [`draw`], but for points that are not finite.
pub(super) fn canvas(points: &Points<'_>, title: &str, side: u32) -> Result<(RgbImage, Frame)> {
    let Points { positions, n_dims, classes } = *points;
    ensure!(matches!(n_dims, 2 | 3), "scatter: points must have 2 or 3 dimensions, got {n_dims}");
    ensure!(
        positions.len() == n_dims * classes.of.len(),
        "scatter: there must be {n_dims} coordinates for each of {} points, got {}",
        classes.of.len(),
        positions.len()
    );
    ensure!(side >= 200, "scatter: the side must be at least 200 pixels, got {side}");
    let letters = letters_for(side);
    let legend = legend_width(classes, letters);
    let mut picture = RgbImage::from_pixel(side, side, Rgb([255; 3]));
    let (_, line) = letters.size_of(title);
    write_text(&mut picture, (MARGIN, MARGIN / 2), title, letters, INK);
    let room = (side as i32 - 2 * MARGIN - line).min(side as i32 - 2 * MARGIN - legend).max(100);
    let top = MARGIN + line + (side as i32 - 2 * MARGIN - line - room) / 2;
    if classes.labelled {
        write_legend(&mut picture, side as i32 - legend, top, classes, letters);
    }
    Ok((picture, Frame { left: f64::from(MARGIN), top: f64::from(top), side: f64::from(room) }))
}

/// The finite points in the frame, in the order of drawing: in space the farthest first, else
/// shuffled so that the last class does not cover the others.
pub(super) fn placed(points: &Points<'_>, frame: &Frame) -> Result<Vec<Disc>> {
    let mut discs = places(points, frame)?;
    in_turn(&mut discs, points.n_dims);
    Ok(discs)
}

fn in_turn(discs: &mut [Disc], n_dims: usize) {
    match n_dims {
        3 => discs.sort_by(|a, b| a.depth.total_cmp(&b.depth)),
        _ => shuffle(discs),
    }
}

/// The finite points in the frame, as they are given.
fn places(points: &Points<'_>, frame: &Frame) -> Result<Vec<Disc>> {
    let Points { positions, n_dims, classes } = *points;
    let seen = || {
        let rows = positions.par_chunks_exact(n_dims).zip(&classes.of).enumerate();
        let finite = rows.filter(|(_, (row, _))| row.iter().all(|x| x.is_finite()));
        finite.map(|(index, (row, &class))| (index, seen_from_aside(row), class))
    };
    let none = || [(f64::INFINITY, f64::NEG_INFINITY); 3];
    let both = |a: [(f64, f64); 3], b: [(f64, f64); 3]| {
        std::array::from_fn(|axis| (a[axis].0.min(b[axis].0), a[axis].1.max(b[axis].1)))
    };
    let [x, y, z] = seen().map(|(_, at, _)| at.map(|x| (x, x))).reduce(none, both);
    ensure!(x.0.is_finite(), "scatter: there must be at least 1 finite point, got none");
    let extent = (x.1 - x.0).max(y.1 - y.0);
    // Far below any layout's span, so that equal points lie in the middle.
    let scale = if extent > 0. { 0.97 * frame.side / extent } else { 0. };
    let middle = |centre: f64, low: f64, high: f64, at: f64| centre + (at - (low + high) / 2.) * scale;
    let disc = |(index, at, class): (usize, [f64; 3], u32)| Disc {
        index,
        at: [
            middle(frame.left + frame.side / 2., x.0, x.1, at[0]),
            // The second coordinate grows upwards.
            2. * (frame.top + frame.side / 2.) - middle(frame.top + frame.side / 2., y.0, y.1, at[1]),
        ],
        depth: if z.1 > z.0 { (at[2] - z.0) / (z.1 - z.0) } else { 1. },
        class,
    };
    Ok(seen().map(disc).collect())
}

/// A point of the plane as it is; one of space as seen from above on the right, its last coordinate
/// towards the viewer.
fn seen_from_aside(row: &[f32]) -> [f64; 3] {
    let [x, y, z] = [0, 1, 2].map(|axis| row.get(axis).copied().map_or(0., f64::from));
    if row.len() < 3 {
        return [x, y, 0.];
    }
    let ((sin_yaw, cos_yaw), (sin_pitch, cos_pitch)) = (0.6f64.sin_cos(), 0.4f64.sin_cos());
    let (right, front) = (cos_yaw * x - sin_yaw * z, sin_yaw * x + cos_yaw * z);
    [right, cos_pitch * y - sin_pitch * front, sin_pitch * y + cos_pitch * front]
}

/// The same order for the same number of points.
fn shuffle(discs: &mut [Disc]) {
    let mut state = 1u64;
    for i in (1..discs.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        discs.swap(i, (state >> 33) as usize % (i + 1));
    }
}

/// A name for the legend, cut off where it is long.
fn short(name: &str) -> String {
    match name.chars().count() {
        0..=NAME_CHARS => name.to_owned(),
        _ => name.chars().take(NAME_CHARS - 2).chain("..".chars()).collect(),
    }
}

/// Width of the legend with its margins; 0 without labels.
fn legend_width(classes: &Classes, letters: Letters) -> i32 {
    let widths = classes.names.iter().map(|name| letters.size_of(&short(name)).0);
    if classes.labelled { widths.max().unwrap_or(0) + letters.size_of("").1 + 2 * MARGIN } else { 0 }
}

/// A line for each class as far as there is room, then how many are left out.
fn write_legend(picture: &mut RgbImage, left: i32, top: i32, classes: &Classes, letters: Letters) {
    let line = letters.size_of("").1;
    let lines = ((picture.height() as i32 - top) / (line + 6) - 1).max(1) as usize;
    let text_left = left + line;
    for (k, name) in classes.names.iter().take(lines).enumerate() {
        let y = top + k as i32 * (line + 6);
        let at = [f64::from(left) + f64::from(line) / 3., f64::from(y) + f64::from(line) / 2.];
        blend(picture, f64::from(line) / 3., &[Blot { at, rgb: rgb(k), opacity: 1. }]);
        write_text(picture, (text_left, y), &short(name), letters, INK);
    }
    if classes.names.len() > lines {
        let more = format!("+{}", classes.names.len() - lines);
        write_text(picture, (text_left, top + lines as i32 * (line + 6)), &more, letters, INK);
    }
}

/// Cells of the grid on which the densest place of a class is found, along one side.
const CELLS: usize = 24;

/// Writes each name where its class is densest, black on a white rim.
fn write_names(picture: &mut RgbImage, discs: &[Disc], frame: &Frame, classes: &Classes, letters: Letters) {
    let cell = |at: f64, low: f64| (((at - low) / frame.side * CELLS as f64) as usize).min(CELLS - 1);
    let mut counts = vec![vec![0u32; CELLS * CELLS]; classes.names.len()];
    for disc in discs {
        counts[disc.class as usize][cell(disc.at[1], frame.top) * CELLS + cell(disc.at[0], frame.left)] += 1;
    }
    for (name, counts) in classes.names.iter().zip(&counts) {
        let Some((row, column)) = densest(counts) else { continue };
        let name = short(name);
        let (width, height) = letters.size_of(&name);
        let centre = |at: usize, low: f64| low + (at as f64 + 0.5) * frame.side / CELLS as f64;
        let x = (centre(column, frame.left) as i32 - width / 2).max(2);
        let y = centre(row, frame.top) as i32 - height / 2;
        for (dx, dy) in (-2..=2).flat_map(|dy| (-2..=2).map(move |dx| (dx, dy))) {
            write_text(picture, (x + dx, y + dy), &name, letters, [255; 3]);
        }
        write_text(picture, (x, y), &name, letters, [0; 3]);
    }
}

/// The cell with the most points in it and in its eight neighbours; none without points.
fn densest(counts: &[u32]) -> Option<(usize, usize)> {
    let around = |row: usize, column: usize| {
        let near = |at: usize| at.saturating_sub(1)..(at + 2).min(CELLS);
        near(row)
            .flat_map(|r| near(column).map(move |c| (r, c)))
            .map(|(r, c)| counts[r * CELLS + c])
            .sum::<u32>()
    };
    let cells = (0..CELLS).flat_map(|row| (0..CELLS).map(move |column| (row, column)));
    let occupied = cells.filter(|&(row, column)| counts[row * CELLS + column] > 0);
    occupied.max_by_key(|&(row, column)| (around(row, column), counts[row * CELLS + column]))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn inked(picture: &RgbImage, k: usize) -> Vec<(u32, u32)> {
        let want = rgb(k);
        // Redder, greener and so on than white by more than half of the way to the colour.
        let near = |pixel: &Rgb<u8>| {
            (0..3).all(|c| i32::from(pixel.0[c]) - i32::from(want[c]) < (255 - i32::from(want[c])) / 2)
                && (0..3).all(|c| pixel.0[c] + 8 >= want[c])
        };
        picture.enumerate_pixels().filter(|(.., pixel)| near(pixel)).map(|(x, y, _)| (x, y)).collect()
    }

    fn unlabelled(n: usize) -> Classes {
        Classes::new(n, None, None)
    }

    #[test]
    fn points_lie_where_their_coordinates_say_with_the_second_upwards() {
        let positions = [0., 0., 4., 0., 0., 4., f32::NAN, 1.];
        let points = Points { positions: &positions, n_dims: 2, classes: &unlabelled(4) };
        let picture = draw(&points, "", 300).unwrap();
        let ink = inked(&picture, 0);
        let within = |x: std::ops::Range<u32>, y: std::ops::Range<u32>| {
            ink.iter().filter(|(px, py)| x.contains(px) && y.contains(py)).count()
        };
        // Three corners of the plot, nothing in the fourth or in the middle.
        let counts = [within(0..60, 240..300), within(240..300, 240..300), within(0..60, 20..80)];
        assert!(counts.iter().all(|&n| n > 10 && n < 200), "{counts:?}");
        assert_eq!(ink.len(), counts.iter().sum::<usize>());
    }

    #[test]
    fn in_space_the_nearer_point_covers_the_farther() {
        let classes = Classes::new(2, Some(&[0, 1]), None);
        let (sin, cos) = 0.6f32.sin_cos();
        let (sin_pitch, cos_pitch) = 0.4f32.sin_cos();
        // The direction to the viewer: both points fall on one pixel.
        let toward = [sin * cos_pitch, sin_pitch, cos * cos_pitch];
        for near in [0, 1] {
            let mut positions = [[0f32; 3]; 2];
            positions[near] = toward;
            let positions = positions.concat();
            let picture =
                draw(&Points { positions: &positions, n_dims: 3, classes: &classes }, "", 400).unwrap();
            let legend = 400 - legend_width(&classes, Letters::Small) as u32;
            let seen = |k| inked(&picture, k).iter().filter(|(x, _)| *x < legend).count();
            assert!(seen(near) > seen(1 - near), "{near}: {} {}", seen(near), seen(1 - near));
        }
    }

    #[test]
    fn the_legend_shows_every_class_and_a_name_stands_where_its_class_is() {
        let labels: Vec<u32> = (0..400).map(|i| i % 2).collect();
        let names = ["left", "a name that is long"].map(str::to_owned);
        let classes = Classes::new(400, Some(&labels), Some(&names));
        let positions: Vec<f32> = (0..400)
            .flat_map(|i| [(i % 2) as f32 * 10. + (i % 7) as f32 / 7., (i % 11) as f32 / 11.])
            .collect();
        let picture =
            draw(&Points { positions: &positions, n_dims: 2, classes: &classes }, "two", 400).unwrap();
        let legend = 400 - legend_width(&classes, Letters::Small) as u32;
        for k in [0, 1] {
            let marks = inked(&picture, k).iter().filter(|(x, _)| *x >= legend).count();
            assert!(marks > 40, "class {k}: {marks} pixels in the legend");
        }
        let black = |from: u32, to: u32| {
            picture
                .enumerate_pixels()
                .filter(|(x, y, p)| (from..to).contains(x) && *y > 60 && p.0.iter().all(|&x| x < 100))
                .count()
        };
        assert!(black(0, legend / 2) > 20 && black(legend / 2, legend + 60) > 20, "names in the plot");
        assert_eq!(short(&names[1]).chars().count(), NAME_CHARS);
    }

    #[test]
    fn very_many_points_show_where_they_are_densest_with_names_and_legend() {
        let n = density::LEAST;
        // Two squares: the left one has three times as many points, of class 0.
        let labels: Vec<u32> = (0..n).map(|i| u32::from(i % 4 == 0)).collect();
        let positions: Vec<f32> = (0..n)
            .flat_map(|i| {
                [(i * 7 % 1009) as f32 / 1009. + 3. * (i % 4 == 0) as u8 as f32, (i % 997) as f32 / 997.]
            })
            .collect();
        let classes = Classes::new(n, Some(&labels), None);
        let points = Points { positions: &positions, n_dims: 2, classes: &classes };
        let mean = |picture: &RgbImage, x: std::ops::Range<u32>| {
            let pixels = x.flat_map(|x| (205..215).map(move |y| picture.get_pixel(x, y).0));
            pixels.fold([0u32; 3], |sum, pixel| std::array::from_fn(|c| sum[c] + u32::from(pixel[c])))
        };
        let picture = draw(&points, "", 400).unwrap();
        let (left, right) = (mean(&picture, 30..50), mean(&picture, 270..290));
        // Blue, and orange.
        assert!(left[2] > left[0] && right[0] > right[2], "{left:?} {right:?}");
        let legend = 400 - legend_width(&classes, Letters::Small) as u32;
        assert!((0..2).all(|k| inked(&picture, k).iter().any(|(x, _)| *x >= legend)));
        let one = unlabelled(n);
        let picture = draw(&Points { classes: &one, ..points }, "", 400).unwrap();
        let (left, right) = (mean(&picture, 30..50), mean(&picture, 340..360));
        assert!((0..3).all(|c| left[c] < right[c]), "{left:?} {right:?}");
        let fewer = Points { positions: &positions[2..], classes: &unlabelled(n - 1), n_dims: 2 };
        assert!(draw(&fewer, "", 400).unwrap() != picture, "discs below");
    }

    #[test]
    fn points_that_are_all_equal_are_drawn_and_what_cannot_be_drawn_is_refused() {
        let classes = unlabelled(2);
        let equal = Points { positions: &[3.; 4], n_dims: 2, classes: &classes };
        assert!(!inked(&draw(&equal, "", 300).unwrap(), 0).is_empty());
        for (points, side, text) in [
            (Points { positions: &[f32::NAN; 4], ..equal }, 300, "at least 1 finite point, got none"),
            (Points { n_dims: 4, ..equal }, 300, "must have 2 or 3 dimensions, got 4"),
            (Points { n_dims: 3, ..equal }, 300, "3 coordinates for each of 2 points, got 4"),
            (equal, 50, "at least 200 pixels, got 50"),
        ] {
            let err = draw(&points, "", side).unwrap_err().to_string();
            assert!(err.contains(text), "{err}");
        }
    }
}
