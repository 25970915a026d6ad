//! A layout as one interactive HTML page, which loads nothing from the network.
//!
//! | part | what |
//! |---|---|
//! | `page.html`, `page.css` | the page without its data |
//! | `points.js` | where points are seen, which is nearest, which lie inside of an outline |
//! | `plot.js` | the plot, drawn by WebGL 2 |
//! | `page.js` | pointer, keys, selection, and what stands beside the plot |
//! | `common.css`, `common.js` | what it has in common with other pages |
//! | [`latents`] | another page: latents of a sparse autoencoder |
//! | [`sprites`] | pictures of rows, for the one that the pointer is on |
//! | [`values`] | numbers of rows that are no pictures, for the same |
//! | [`Page::write`] | the page with its data: points in 16 bits for each coordinate, classes in 8, pictures as PNG |
pub mod latents;
pub mod sprites;
pub mod values;

use crate::pictures::scatter::discs::Points;
use crate::pictures::scatter::{self, colour};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use candle::Result;
use plotters::prelude::RGBColor;
use serde::Serialize;
use sprites::Sprites;
use std::io::{self, Write};
use values::Values;

/// Why the pictures of rows, or their values, are not on a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftOut {
    /// The rows are no pictures that can be drawn.
    NoPictures,
    /// They take more bytes than they may.
    TooLarge,
}

/// What a page shows.
pub struct Page<'a> {
    /// Stands above the plot.
    pub title: &'a str,
    /// The layout.
    pub points: Points<'a>,
    /// Names and values that stand below the title.
    pub figures: &'a [(String, String)],
    /// Pictures of the rows, where there are any.
    pub sprites: Option<&'a Sprites>,
    /// Their values, where there are none.
    pub values: Option<&'a Values>,
    /// Sentences that stand beside the plot.
    pub notes: &'a [String],
}

/// What the script reads.
#[derive(Serialize)]
struct Data<'a> {
    n: usize,
    n_dims: usize,
    /// The least value of each coordinate, and how far the largest is from it.
    low: Vec<f32>,
    extent: Vec<f32>,
    /// u16 `[n, n_dims]`, little-endian, in base64: 0 stands for `low`, 65535 for `low + extent`.
    points: String,
    /// u8 `[n]`, in base64.
    class_of: String,
    classes: Vec<Class<'a>>,
    labelled: bool,
    figures: &'a [(String, String)],
    sprites: Option<&'a Sprites>,
    values: Option<&'a Values>,
    notes: &'a [String],
}

#[derive(Serialize)]
struct Class<'a> {
    name: &'a str,
    colour: [u8; 3],
    count: usize,
}

impl Page<'_> {
    /// Writes the page.
    ///
    /// # Errors
    /// When there are no points, one is not finite, there are more than 256 classes, or `out` refuses.
    pub fn write(&self, out: &mut dyn Write) -> Result<()> {
        let Points { positions, n_dims, classes } = self.points;
        ensure!(
            !positions.is_empty() && positions.iter().all(|x| x.is_finite()),
            "page: there must be at least 1 point, and all must be finite"
        );
        let class_of: Vec<u8> = classes.of.iter().filter_map(|&k| u8::try_from(k).ok()).collect();
        ensure!(
            class_of.len() == classes.of.len(),
            "page: there must be at most {} classes, got {}",
            scatter::MOST_CLASSES,
            classes.names.len()
        );
        let (low, extent) = bounds(positions, n_dims);
        let of_class = classes.names.iter().zip(classes.counts()).enumerate();
        let data = Data {
            n: classes.of.len(),
            n_dims,
            points: quantised(positions, &low, &extent),
            low,
            extent,
            class_of: STANDARD.encode(class_of),
            classes: of_class
                .map(|(k, (name, count))| {
                    let RGBColor(r, g, b) = colour(k);
                    Class { name, colour: [r, g, b], count }
                })
                .collect(),
            labelled: classes.labelled,
            figures: self.figures,
            sprites: self.sprites,
            values: self.values,
            notes: self.notes,
        };
        TEMPLATE.write(self.title, &data, out)
    }
}

const COMMON_STYLE: &str = include_str!("common.css");
const COMMON_SCRIPT: &str = include_str!("common.js");
const TEMPLATE: Template = Template {
    html: include_str!("page.html"),
    style: [COMMON_STYLE, include_str!("page.css")],
    script: &[COMMON_SCRIPT, include_str!("points.js"), include_str!("plot.js"), include_str!("page.js")],
};

/// A page without its data: `{{title}}`, `{{style}}`, `{{data}}` and `{{script}}` stand where these
/// go.
struct Template {
    html: &'static str,
    style: [&'static str; 2],
    script: &'static [&'static str],
}

impl Template {
    fn write(&self, title: &str, data: &impl Serialize, out: &mut dyn Write) -> Result<()> {
        let mut rest = self.html;
        while let Some((before, after)) = rest.split_once("{{") {
            out.write_all(before.as_bytes())?;
            let (name, after) = after.split_once("}}").unwrap_or((after, ""));
            match name {
                "title" => out.write_all(escaped(title).as_bytes())?,
                "style" => out.write_all(self.style.concat().as_bytes())?,
                "data" => serde_json::to_writer(InScript(&mut *out), data).map_err(io::Error::from)?,
                _ => out.write_all(self.script.concat().as_bytes())?,
            }
            rest = after;
        }
        Ok(out.write_all(rest.as_bytes())?)
    }
}

/// JSON in which a label `</script>` does not end the script that holds it.
struct InScript<W>(W);

impl<W: Write> Write for InScript<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Most are base64, and long.
        let has = bytes.contains(&b'<');
        match has.then(|| bytes.iter().position(|&byte| byte == b'<')).flatten() {
            Some(0) => self.0.write_all(b"\\u003c").map(|()| 1),
            Some(at) => self.0.write(&bytes[..at]),
            None => self.0.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The least value of each coordinate, and how far the largest is from it.
fn bounds(positions: &[f32], n_dims: usize) -> (Vec<f32>, Vec<f32>) {
    let (mut low, mut high) = (vec![f32::INFINITY; n_dims], vec![f32::NEG_INFINITY; n_dims]);
    for (at, &x) in positions.iter().enumerate() {
        let axis = at % n_dims;
        (low[axis], high[axis]) = (low[axis].min(x), high[axis].max(x));
    }
    let extent = low.iter().zip(&high).map(|(low, high)| high - low).collect();
    (low, extent)
}

fn quantised(positions: &[f32], low: &[f32], extent: &[f32]) -> String {
    let bytes: Vec<u8> = positions
        .iter()
        .zip(low.iter().zip(extent).cycle())
        .flat_map(|(&x, (&low, &extent))| {
            let share = if extent > 0. { (x - low) / extent } else { 0. };
            ((share * 65535.).round() as u16).to_le_bytes()
        })
        .collect();
    STANDARD.encode(bytes)
}

/// Text that HTML shows as it is.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::pictures::scatter::Classes;
    use serde_json::Value;

    pub(super) fn data_of(html: &str) -> Value {
        let (_, after) = html.split_once(r#"<script id="data" type="application/json">"#).unwrap();
        serde_json::from_str(after.split_once("</script>").unwrap().0).unwrap()
    }

    fn written(page: &Page<'_>) -> Result<String> {
        let mut bytes = Vec::new();
        page.write(&mut bytes)?;
        Ok(String::from_utf8(bytes).unwrap())
    }

    fn page(title: &str, names: &[String]) -> String {
        let classes = Classes::new(3, Some(&[0, 1, 0]), Some(names));
        let points = Points { positions: &[-1., 5., 0., 5., 3., 5.], n_dims: 2, classes: &classes };
        let figures = [("KL".to_owned(), "1.25".to_owned())];
        written(&Page { title, points, figures: &figures, sprites: None, values: None, notes: &[] }).unwrap()
    }

    #[test]
    fn points_and_classes_come_back_from_the_page() {
        let data = data_of(&page("a", &["x".into(), "y".into()]));
        let bytes = |field: &str| STANDARD.decode(data[field].as_str().unwrap()).unwrap();
        let points: Vec<u16> =
            bytes("points").chunks_exact(2).map(|b| u16::from_le_bytes(b.try_into().unwrap())).collect();
        // A coordinate without extent is 0 everywhere.
        assert_eq!(points, [0, 0, 16384, 0, 65535, 0]);
        assert_eq!(
            (&data["low"], &data["extent"]),
            (&serde_json::json!([-1., 5.]), &serde_json::json!([4., 0.]))
        );
        assert_eq!(bytes("class_of"), [0, 1, 0]);
        assert_eq!(
            (data["classes"][0]["count"].as_u64(), data["classes"][1]["name"].as_str()),
            (Some(2), Some("y"))
        );
        assert_eq!(data["figures"], serde_json::json!([["KL", "1.25"]]));
    }

    #[test]
    fn a_point_takes_seven_bytes_in_the_plane_and_ten_in_space() {
        let bytes = |n: usize, n_dims: usize| {
            let labels: Vec<u32> = (0..n).map(|i| (i % 256) as u32).collect();
            let classes = Classes::new(n, Some(&labels), None);
            let positions: Vec<f32> = (0..n * n_dims).map(|i| (i * 37 % 1009) as f32).collect();
            let points = Points { positions: &positions, n_dims, classes: &classes };
            let page = Page { title: "", points, figures: &[], sprites: None, values: None, notes: &[] };
            written(&page).unwrap().len()
        };
        for (n_dims, each) in [(2, 7), (3, 10)] {
            let more = bytes(20_480, n_dims) - bytes(10_240, n_dims);
            // Counts of classes have a digit more.
            assert!(more <= each * 10_240 + 256, "{n_dims} dimensions: {more}");
        }
    }

    #[test]
    fn more_classes_than_a_byte_holds_are_refused() {
        let of: Vec<u32> = (0..257).collect();
        let names = of.iter().map(u32::to_string).collect();
        let classes = Classes { names, of, labelled: true };
        let points = Points { positions: &[0.; 514], n_dims: 2, classes: &classes };
        let page = Page { title: "", points, figures: &[], sprites: None, values: None, notes: &[] };
        let err = written(&page).unwrap_err().to_string();
        assert!(err.starts_with("page: there must be at most 256 classes, got 257"), "{err}");
    }

    #[test]
    fn titles_and_labels_are_text_whatever_they_hold() {
        let evil = "</script><script>alert(1)</script>{{data}}";
        let html = page(evil, &[evil.to_owned(), "<b>".to_owned()]);
        assert_eq!(html.matches("<script").count(), 2, "the page's own");
        assert!(html.contains("<title>&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;{{data}}</title>"));
        assert_eq!(data_of(&html)["classes"][0]["name"].as_str(), Some(evil));
    }

    #[test]
    fn a_page_loads_nothing_and_is_refused_without_finite_points() {
        let html = page("a", &[]);
        assert!(
            !html.contains("http://") && !html.contains("https://") && html.contains("default-src 'none'")
        );
        let classes = Classes::new(1, None, None);
        for positions in [&[][..], &[0., f32::NAN]] {
            let points = Points { positions, n_dims: 2, classes: &classes };
            let page = Page { title: "", points, figures: &[], sprites: None, values: None, notes: &[] };
            assert!(
                written(&page).unwrap_err().to_string().starts_with("page: there must be at least 1 point")
            );
        }
    }
}
