//! Curves as one SVG or PNG: panels side by side, each with labelled axes, and a legend below them
//! or names at the ends of its lines.
//!
//! The letters of an SVG are its viewer's; those of a PNG are of the one size that the crate brings
//! ([`Raster`]).
mod axis;
mod labels;
mod legend;

use super::raster::Raster;
use axis::{Marked, number, range};
use candle::{Error, Result};
use image::{Rgb, RgbImage};
use legend::Legend;
use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;

/// One line in a panel.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// What the legend or the label calls it.
    pub name: String,
    /// Points `(x, y)` in the order of `x`. A point that is not finite breaks nothing: it is left
    /// out.
    pub points: Vec<(f64, f64)>,
    /// Whether each point has a mark.
    pub marked: bool,
    /// Whether its line is dashed.
    pub dashed: bool,
    /// The number of its colour, of seven that come again; that of its place in the panel by
    /// default.
    pub colour: Option<usize>,
}

impl Curve {
    /// A line through points in the order of `x`.
    pub fn new(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let (name, points) = (name.into(), points.into_iter().collect());
        Self { name, points, marked: true, dashed: false, colour: None }
    }

    /// The same with a dashed line.
    pub fn dashed(self) -> Self {
        Self { dashed: true, ..self }
    }

    /// The same in the colour of this number.
    pub fn coloured(self, colour: usize) -> Self {
        Self { colour: Some(colour), ..self }
    }
}

/// A plot with its own axes.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    /// Stands above it.
    pub title: String,
    /// What runs along the horizontal axis, with its unit.
    pub x_label: String,
    /// What runs along the vertical axis, with its unit.
    pub y_label: String,
    /// Whether the horizontal axis is logarithmic; points that are not above 0 are then left out.
    pub log_x: bool,
    /// The same for the vertical axis.
    pub log_y: bool,
    /// Whether names stand at the last points of their lines, instead of in a legend below.
    pub labelled: bool,
    /// The lines in it; without a point the panel shows empty axes.
    pub curves: Vec<Curve>,
}

impl Panel {
    /// A plot of these lines, with linear axes.
    pub fn new(
        title: impl Into<String>,
        x_label: impl Into<String>,
        y_label: impl Into<String>,
        curves: Vec<Curve>,
    ) -> Self {
        let (title, x_label, y_label) = (title.into(), x_label.into(), y_label.into());
        Self { title, x_label, y_label, log_x: false, log_y: false, labelled: false, curves }
    }

    /// The same with a logarithmic vertical axis.
    pub fn log(self) -> Self {
        Self { log_y: true, ..self }
    }

    /// The same with a logarithmic horizontal axis.
    pub fn log_x(self) -> Self {
        Self { log_x: true, ..self }
    }

    /// The same with names at the ends of lines.
    pub fn labelled(self) -> Self {
        Self { labelled: true, ..self }
    }

    /// The curves with their colours.
    fn coloured(&self) -> impl Iterator<Item = (&Curve, RGBColor)> {
        let colour = |place, curve: &Curve| COLOURS[curve.colour.unwrap_or(place) % COLOURS.len()];
        self.curves.iter().enumerate().map(move |(place, curve)| (curve, colour(place, curve)))
    }
}

/// Width and height of a panel without its legend, in pixels.
const PANEL: (u32, u32) = (480, 340);

/// Line colours that colour-blind readers can tell apart (Okabe and Ito 2008).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

/// Draws the panels in a row; the result is a whole SVG document.
///
/// # Errors
/// When there is no panel, or the plotter fails.
pub fn draw(panels: &[Panel]) -> Result<String> {
    draw_in(panels, panels.len())
}

/// Draws the panels in rows of so many; the result is a whole SVG document.
///
/// # Errors
/// As [`draw`].
pub fn draw_in(panels: &[Panel], columns: usize) -> Result<String> {
    const LETTERS: u32 = 12;
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, size_of(panels, columns, LETTERS)?).into_drawing_area();
    draw_on(root, panels, columns, LETTERS)?;
    Ok(svg)
}

/// Draws the panels in a row, as pixels.
///
/// # Errors
/// As [`draw`].
pub fn draw_pixels(panels: &[Panel]) -> Result<RgbImage> {
    // Letters of 8 pixels: about as wide as those of a 15-point font.
    const LETTERS: u32 = 15;
    let (width, height) = size_of(panels, panels.len(), LETTERS)?;
    let mut picture = RgbImage::from_pixel(width, height, Rgb([255; 3]));
    draw_on(Raster::new(&mut picture).into_drawing_area(), panels, panels.len(), LETTERS)?;
    Ok(picture)
}

/// Width and height of the whole; `letters` is the size of a name's letters.
fn size_of(panels: &[Panel], columns: usize, letters: u32) -> Result<(u32, u32)> {
    let legends = panels.iter().map(|panel| Legend::of(panel, letters).height());
    match legends.max() {
        Some(legend) if columns > 0 => {
            let rows = panels.len().div_ceil(columns) as u32;
            Ok((PANEL.0 * columns as u32, (PANEL.1 + legend) * rows))
        }
        _ => candle::bail!("curves: there must be at least 1 panel in a row, got none"),
    }
}

fn draw_on<B: DrawingBackend>(
    root: DrawingArea<B, Shift>,
    panels: &[Panel],
    columns: usize,
    letters: u32,
) -> Result<()> {
    root.fill(&WHITE).map_err(failed)?;
    let areas = root.split_evenly((panels.len().div_ceil(columns), columns));
    for (area, panel) in areas.iter().zip(panels) {
        let (plot, below) = area.split_vertically(PANEL.1);
        draw_panel(&plot, panel, letters)?;
        Legend::of(panel, letters).draw(&below, panel)?;
    }
    root.present().map_err(failed)
}

/// About how wide a text is, in pixels: letters are about half as wide as they are high.
fn width_of(text: &str, letters: u32) -> u32 {
    (0.56 * f64::from(letters) * text.chars().count() as f64) as u32
}

fn draw_panel<B: DrawingBackend>(area: &DrawingArea<B, Shift>, panel: &Panel, letters: u32) -> Result<()> {
    let scaled = |log: bool, value: f64| if log { value.log10() } else { value };
    let finite = |curve: &Curve| -> Vec<(f64, f64)> {
        let points = curve.points.iter().map(|&(x, y)| (scaled(panel.log_x, x), scaled(panel.log_y, y)));
        points.filter(|(x, y)| x.is_finite() && y.is_finite()).collect()
    };
    let curves: Vec<_> = panel.curves.iter().map(finite).collect();
    let points = || curves.iter().flatten();
    let x = Marked::new(range(points().map(|p| p.0)), panel.log_x);
    let y = Marked::new(range(points().map(|p| p.1)), panel.log_y);
    let text = |log: bool, value: f64| number(if log { 10f64.powf(value) } else { value });
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 18))
        .margin(10)
        .margin_right(10 + labels::width(panel, letters))
        .x_label_area_size(38)
        .y_label_area_size(64)
        .build_cartesian_2d(x, y)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(225, 225, 225))
        .x_desc(&panel.x_label)
        .y_desc(&panel.y_label)
        .x_label_formatter(&|&x| text(panel.log_x, x))
        .y_label_formatter(&|&y| text(panel.log_y, y))
        .axis_desc_style(("sans-serif", 14))
        .label_style(("sans-serif", 12))
        .draw()
        .map_err(failed)?;
    for (points, (curve, colour)) in curves.iter().zip(panel.coloured()) {
        // Each piece for itself: a path that turns sharply gets a spike as long as the plot.
        let pieces = points.windows(2).map(<[_]>::to_vec);
        let line = colour.stroke_width(2);
        if curve.dashed {
            let dashed = pieces.map(|ends| DashedPathElement::new(ends, 12, 8, line));
            chart.draw_series(dashed).map_err(failed)?;
        } else {
            chart.draw_series(pieces.map(|ends| PathElement::new(ends, line))).map_err(failed)?;
        }
        // A run of one epoch has one point, which is no line.
        let marks = points.iter().filter(|_| curve.marked);
        chart.draw_series(marks.map(|&p| Circle::new(p, 2, colour.filled()))).map_err(failed)?;
    }
    if panel.labelled {
        let end = |points: &Vec<_>| points.last().map(|at| chart.plotting_area().map_coordinate(at));
        labels::draw(area, panel, &curves.iter().map(end).collect::<Vec<_>>(), letters)?;
    }
    Ok(())
}

fn failed(err: impl std::fmt::Display) -> Error {
    Error::Msg(format!("curves: {err}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    pub(super) fn panel(curves: Vec<Curve>) -> Panel {
        Panel::new("reconstruction", "epoch", "squared error per unit", curves)
    }

    #[test]
    fn a_panel_holds_its_labels_its_legend_and_a_mark_for_each_finite_point() {
        let points = vec![(1., 0.5), (2., f64::NAN), (3., 0.25), (4., 0.125)];
        let curve = Curve::new("layer 1", points);
        let svg = draw(&[panel(vec![curve])]).unwrap();
        for text in ["reconstruction", "epoch", "squared error per unit", "layer 1"] {
            assert!(svg.contains(text), "{text} is missing");
        }
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(svg.trim_end().ends_with("</svg>"));
        assert!(!svg.contains("NaN"));
    }

    #[test]
    fn panels_without_points_or_with_one_still_draw() {
        let one = Curve::new("one", [(1., 7.)]);
        let svg = draw(&[panel(vec![]), panel(vec![one])]).unwrap();
        assert!(svg.contains(&format!("width=\"{}\"", 2 * PANEL.0)));
        assert_eq!(svg.matches("<circle").count(), 1);
    }

    #[test]
    fn a_dashed_line_is_in_pieces_and_has_the_colour_that_it_is_told() {
        let line = || Curve::new("a", [(0., 0.), (1., 0.)]);
        let svg = |curve| draw(&[panel(vec![line(), curve])]).unwrap();
        let RGBColor(r, g, b) = COLOURS[1];
        let mine = format!("stroke=\"#{r:02X}{g:02X}{b:02X}\" stroke-width=\"2\"");
        assert_eq!(svg(line()).matches(&mine).count(), 1);
        assert_eq!(svg(line().coloured(7)).matches(&mine).count(), 0);
        assert!(svg(line().dashed()).matches(&mine).count() > 15);
    }

    #[test]
    fn panels_stand_in_rows_of_as_many_as_are_asked_for() {
        let panels: [Panel; 3] =
            std::array::from_fn(|i| panel(vec![Curve::new(format!("c{i}"), [(0., 1.)])]));
        let svg = draw_in(&panels, 2).unwrap();
        let height = 2 * (PANEL.1 + Legend::of(&panels[0], 12).height());
        assert!(svg.contains(&format!("width=\"{}\" height=\"{height}\"", 2 * PANEL.0)), "{svg}");
        assert_eq!(draw(&panels).unwrap(), draw_in(&panels, 3).unwrap());
        for none in [draw_in(&panels, 0), draw(&[])] {
            assert!(none.unwrap_err().to_string().contains("at least 1 panel"));
        }
    }

    #[test]
    fn pixels_show_each_curve_in_its_colour() {
        let curves = [1., 2.].map(|y| Curve::new("a", [(0., y), (1., 10. * y)]));
        let picture = draw_pixels(&[panel(curves.to_vec()).log()]).unwrap();
        for RGBColor(r, g, b) in [COLOURS[0], COLOURS[1]] {
            let n = picture.pixels().filter(|pixel| pixel.0 == [r, g, b]).count();
            assert!(n > 200, "{n} pixels of {r} {g} {b}");
        }
    }

    #[test]
    fn a_sharp_turn_stays_within_the_plot() {
        // Up, and down again a pixel beside.
        let turns = Curve::new("a", [(0., 0.), (0.001, 1.), (0.002, 0.2), (1., 0.5)]);
        let picture = draw_pixels(&[panel(vec![turns])]).unwrap();
        let RGBColor(r, g, b) = COLOURS[0];
        let highest = picture.enumerate_pixels().filter(|(.., pixel)| pixel.0 == [r, g, b]);
        assert!(highest.map(|(_, y, _)| y).min().unwrap() > 36);
    }
}
