//! Latents of a sparse autoencoder as one interactive HTML page, which loads nothing from the
//! network: how often each is active, the latents whose decoder rows are nearest, and the rows with
//! its largest values, as pictures, as texts, or by their numbers.
//!
//! A latent is found by its number; the list is sorted by density or by number. Keys: `n` and `p`.
use super::sprites::Sprites;
use super::{COMMON_SCRIPT, COMMON_STYLE, Template};
use candle::Result;
use serde::Serialize;
use std::io::Write;

const TEMPLATE: Template = Template {
    html: include_str!("page.html"),
    style: [COMMON_STYLE, include_str!("page.css")],
    script: &[COMMON_SCRIPT, include_str!("page.js")],
};

/// What is shown of a latent.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Latent {
    /// By which it is known.
    pub number: u32,
    /// In how many rows it was active.
    pub uses: u64,
    /// The same as a share of rows, in [0, 1].
    pub density: f64,
    /// Other latents and the cosines of their decoder rows with its own, the nearest first.
    pub neighbours: Vec<(u32, f32)>,
    /// Places in [`LatentsPage::rows`] and its values there, the largest first.
    pub top: Vec<(usize, f32)>,
}

/// What a page shows.
#[derive(Debug)]
pub struct LatentsPage<'a> {
    /// Stands above it.
    pub title: &'a str,
    /// Names and values that stand below the title.
    pub figures: &'a [(String, String)],
    /// Rows over which densities are taken.
    pub n_rows: usize,
    /// The latents, each number once.
    pub latents: &'a [Latent],
    /// Numbers of the rows that are shown.
    pub rows: &'a [u32],
    /// Pictures of these rows, where there are any.
    pub sprites: Option<&'a Sprites>,
    /// Texts of these rows, where there are any.
    pub texts: Option<&'a [String]>,
    /// Sentences that stand beside them.
    pub notes: &'a [String],
}

/// What the script reads.
#[derive(Serialize)]
struct Data<'a> {
    figures: &'a [(String, String)],
    n_rows: usize,
    latents: &'a [Latent],
    rows: &'a [u32],
    sprites: Option<&'a Sprites>,
    texts: Option<&'a [String]>,
    notes: &'a [String],
}

impl LatentsPage<'_> {
    /// Writes the page.
    ///
    /// # Errors
    /// When a latent names a row that there is not, texts are not as many as rows, a number is not
    /// finite, or `out` refuses.
    pub fn write(&self, out: &mut dyn Write) -> Result<()> {
        let &Self { title, figures, n_rows, latents, rows, sprites, texts, notes } = self;
        let mut numbers = latents.iter().flat_map(|latent| {
            latent.neighbours.iter().map(|(_, x)| x).chain(latent.top.iter().map(|(_, x)| x))
        });
        ensure!(
            latents.iter().all(|latent| latent.top.iter().all(|&(at, _)| at < rows.len())),
            "page: rows must be those that are shown, {} of them",
            rows.len()
        );
        ensure!(
            texts.is_none_or(|texts| texts.len() == rows.len()),
            "page: texts must be {}, one for each row that is shown, got {}",
            rows.len(),
            texts.map_or(0, <[String]>::len)
        );
        ensure!(
            numbers.all(|x| x.is_finite()) && latents.iter().all(|latent| latent.density.is_finite()),
            "page: densities, cosines and values must be finite"
        );
        TEMPLATE.write(title, &Data { figures, n_rows, latents, rows, sprites, texts, notes }, out)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::tests::data_of;
    use super::*;

    fn latent(number: u32, top: Vec<(usize, f32)>) -> Latent {
        Latent { number, uses: 2, density: 0.5, neighbours: vec![(1, 0.25)], top }
    }

    fn written(latents: &[Latent], texts: Option<&[String]>) -> Result<String> {
        let page = LatentsPage {
            title: "<b>",
            figures: &[("L0".to_owned(), "32".to_owned())],
            n_rows: 4,
            latents,
            rows: &[7, 3],
            sprites: None,
            texts,
            notes: &[],
        };
        let mut bytes = Vec::new();
        page.write(&mut bytes)?;
        Ok(String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn latents_and_texts_come_back_from_a_page_that_loads_nothing() {
        let texts = ["</script><script>alert(1)</script>".to_owned(), "b".to_owned()];
        let html = written(&[latent(5, vec![(1, 2.5)]), latent(0, vec![])], Some(&texts)).unwrap();
        assert!(
            !html.contains("http://") && !html.contains("https://") && html.contains("default-src 'none'")
        );
        assert_eq!(html.matches("<script").count(), 2, "the page's own");
        assert!(html.contains("<title>&lt;b&gt;</title>"));
        let data = data_of(&html);
        assert_eq!(data["texts"], serde_json::json!(texts));
        assert_eq!(data["latents"][0]["top"], serde_json::json!([[1, 2.5]]));
        assert_eq!(data["latents"][0]["neighbours"], serde_json::json!([[1, 0.25]]));
        assert_eq!((data["latents"][1]["number"].as_u64(), data["rows"][1].as_u64()), (Some(0), Some(3)));
    }

    #[test]
    fn what_does_not_belong_together_is_refused() {
        let said =
            |latents: &[Latent], texts: Option<&[String]>| written(latents, texts).unwrap_err().to_string();
        assert!(
            said(&[latent(0, vec![(2, 1.)])], None).starts_with("page: rows must be those that are shown, 2")
        );
        let one = ["a".to_owned()];
        assert!(said(&[latent(0, vec![])], Some(&one)).starts_with("page: texts must be 2"));
        assert!(said(&[latent(0, vec![(0, f32::NAN)])], None).contains("must be finite"));
    }
}
