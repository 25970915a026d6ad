//! Points coloured by class, with a legend: as one SVG with axes, which suits some thousands; as
//! pixels ([`discs`]), for any number, in the plane or in space, from 100,000 on by density; as
//! images of the rows that they stand for ([`thumbnails`]); those on a line as a histogram
//! ([`stacked`]); and as an animation of many pictures ([`animation`]).
pub mod animation;
mod blend;
mod classes;
mod density;
pub mod discs;
mod stacks;
pub mod thumbnails;

pub use classes::{Classes, MOST as MOST_CLASSES};
pub use stacks::stacked;

use candle::{Error, Result};
use plotters::prelude::*;

/// Points of one class.
#[derive(Debug, Clone, PartialEq)]
pub struct Class {
    /// What the legend calls it.
    pub name: String,
    /// Its points; those that are not finite are left out.
    pub points: Vec<(f64, f64)>,
}

/// Width of the plot and of the legend beside it, and their height, in pixels.
const PLOT: u32 = 640;
const LEGEND: u32 = 110;
const HEIGHT: u32 = 640;

/// Ten colours that differ in hue or lightness (Tableau 10).
const COLOURS: [RGBColor; 10] = [
    RGBColor(78, 121, 167),
    RGBColor(242, 142, 43),
    RGBColor(225, 87, 89),
    RGBColor(118, 183, 178),
    RGBColor(89, 161, 79),
    RGBColor(237, 201, 72),
    RGBColor(176, 122, 161),
    RGBColor(255, 157, 167),
    RGBColor(156, 117, 95),
    RGBColor(60, 60, 60),
];

/// The colour of the class `k`, counted from 0. From the eleventh on, hues go round the circle by
/// the golden angle.
pub fn colour(k: usize) -> RGBColor {
    COLOURS.get(k).copied().unwrap_or_else(|| {
        let turn = (k as f64 * 0.618_034).fract();
        let (r, g, b) = HSLColor(turn, 0.55, [0.35, 0.5, 0.65][k % 3]).rgb();
        RGBColor(r, g, b)
    })
}

/// Draws the classes; the result is a whole SVG document.
///
/// # Errors
/// When there is no finite point, or the plotter fails.
pub fn draw(title: &str, x_label: &str, y_label: &str, classes: &[Class]) -> Result<String> {
    let finite = |p: &(f64, f64)| p.0.is_finite() && p.1.is_finite();
    let points = || classes.iter().flat_map(|class| &class.points).filter(|p| finite(p));
    ensure!(points().next().is_some(), "scatter: there must be at least 1 finite point, got none");
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (PLOT + LEGEND, HEIGHT)).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let (left, right) = root.split_horizontally(PLOT);
        let mut chart = ChartBuilder::on(&left)
            .caption(title, ("sans-serif", 18))
            .margin(10)
            .x_label_area_size(38)
            .y_label_area_size(56)
            .build_cartesian_2d(range(points().map(|p| p.0)), range(points().map(|p| p.1)))
            .map_err(failed)?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .bold_line_style(RGBColor(230, 230, 230))
            .x_desc(x_label)
            .y_desc(y_label)
            .x_labels(6)
            .y_labels(6)
            .axis_desc_style(("sans-serif", 14))
            .label_style(("sans-serif", 12))
            .draw()
            .map_err(failed)?;
        // Classes take turns, so that the last does not cover the others.
        let longest = classes.iter().map(|class| class.points.len()).max().unwrap_or(0);
        let turns = (0..longest).flat_map(|i| {
            let of_class = classes.iter().enumerate();
            of_class.filter_map(move |(k, class)| Some((*class.points.get(i)?, colour(k))))
        });
        let circles = turns.filter(|(p, _)| finite(p)).map(|(p, c)| Circle::new(p, 2, c.mix(0.7).filled()));
        chart.draw_series(circles).map_err(failed)?;
        for (k, class) in classes.iter().enumerate() {
            let y = 50 + 20 * k as i32;
            right.draw(&Circle::new((10, y), 5, colour(k).filled())).map_err(failed)?;
            right.draw(&Text::new(class.name.clone(), (22, y - 7), ("sans-serif", 14))).map_err(failed)?;
        }
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

/// The range of some values with a margin of a twentieth; never empty.
fn range(values: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
    let margin = if high > low { (high - low) / 20. } else { low.abs().max(1.) / 20. };
    low - margin..high + margin
}

fn failed(err: impl std::fmt::Display) -> Error {
    Error::Msg(format!("scatter: {err}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_colours_of_sixty_classes_differ() {
        for (a, b) in (0..60).flat_map(|a| (0..a).map(move |b| (a, b))) {
            assert_ne!(colour(a), colour(b), "{a} and {b}");
        }
    }

    #[test]
    fn every_finite_point_and_every_class_is_shown() {
        let class =
            |name: &str, points: &[(f64, f64)]| Class { name: name.to_owned(), points: points.to_vec() };
        let classes =
            [class("seven", &[(0., 1.), (2., f64::NAN)]), class("eight", &[(3., 4.), (5., 6.), (1., 1.)])];
        let svg = draw("codes", "first", "second", &classes).unwrap();
        // Four points and two marks of the legend.
        assert_eq!(svg.matches("<circle").count(), 6);
        for text in ["codes", "first", "second", "seven", "eight"] {
            assert!(svg.contains(text), "{text} is missing");
        }
        assert!(!svg.contains("NaN") && svg.trim_end().ends_with("</svg>"));
        let none = draw("", "", "", &[class("a", &[(f64::NAN, 0.)])]).unwrap_err();
        let words = "scatter: there must be at least 1 finite point, got none";
        assert!(none.to_string().starts_with(words), "{none}");
    }
}
