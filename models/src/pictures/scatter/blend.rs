//! Discs with a soft edge, mixed into a picture.
//!
//! ```text
//! alpha  = opacity · clamp(radius + ½ − |pixel − at|, 0, 1)
//! colour = round(under + alpha (rgb − under))
//! ```
//!
//! Each thread mixes all discs, in their order, into some lines: the picture is the same whatever
//! their number.
use crate::pictures::tiles::rounded;
use image::RgbImage;
use rayon::prelude::*;

/// Lines of a picture that one thread draws at a time.
const LINES: usize = 16;

/// A point on the picture: which it is, centre in pixels, depth from 0 (far) to 1, class.
pub(super) struct Disc {
    pub index: usize,
    pub at: [f64; 2],
    pub depth: f64,
    pub class: u32,
}

/// A disc: its centre in pixels, its colour, and how much of what is under it it covers, 0 to 1.
pub(super) struct Blot {
    pub at: [f64; 2],
    pub rgb: [u8; 3],
    pub opacity: f64,
}

/// Mixes discs of one radius in their order; what lies outside is left out.
pub(super) fn blend(picture: &mut RgbImage, radius: f64, blots: &[Blot]) {
    let line = 3 * picture.width() as usize;
    picture.par_chunks_mut((LINES * line).max(1)).enumerate().for_each(|(band, pixels)| {
        let mut band = Band { pixels, line, top: band * LINES };
        blots.iter().for_each(|blot| band.blend(radius, blot));
    });
}

/// Some lines of a picture, the first of which is its line `top`.
struct Band<'a> {
    pixels: &'a mut [u8],
    /// Bytes of a line.
    line: usize,
    top: usize,
}

impl Band<'_> {
    fn blend(&mut self, radius: f64, &Blot { at: [cx, cy], rgb, opacity }: &Blot) {
        let reach = radius + 0.5;
        let end = self.top + self.pixels.len() / self.line;
        if cy + reach < self.top as f64 || cy - reach > end as f64 {
            return;
        }
        // Centres of pixels lie half a pixel from their edges.
        let within = |centre: f64, low: usize, high: usize| {
            ((centre - reach - 0.5).max(0.) as usize).max(low)
                ..((centre + reach + 0.5).max(0.) as usize).min(high)
        };
        for y in within(cy, self.top, end) {
            let dy = y as f64 + 0.5 - cy;
            let pixels = &mut self.pixels[(y - self.top) * self.line..][..self.line];
            for x in within(cx, 0, self.line / 3) {
                let dx = x as f64 + 0.5 - cx;
                // A little more than the reach, so that rounding leaves out no pixel.
                if dx * dx + dy * dy > 1.001 * reach * reach {
                    continue;
                }
                let alpha = opacity * (reach - dx.hypot(dy)).clamp(0., 1.);
                for (under, over) in pixels[3 * x..][..3].iter_mut().zip(rgb) {
                    let (over, ground) = (f64::from(over), f64::from(*under));
                    *under = rounded(ground + alpha * (over - ground));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::Rgb;

    #[test]
    fn discs_are_mixed_in_turn_whatever_lines_a_thread_draws() {
        let blots: Vec<Blot> = (0..600u32)
            .map(|i| Blot {
                // Some lie on the edge of the picture, and some outside.
                at: [f64::from(i * 37 % 1010) / 4. - 20., f64::from(i * i % 1790) / 7. - 20.],
                rgb: [(i % 256) as u8, (i * 7 % 256) as u8, (i * 31 % 256) as u8],
                opacity: f64::from(i % 11) / 10.,
            })
            .collect();
        for radius in [0.4, 1.2, 3.7, 20.] {
            let mut got = RgbImage::from_pixel(211, 203, Rgb([255; 3]));
            let mut want = got.clone();
            blend(&mut got, radius, &blots);
            for Blot { at, rgb, opacity } in &blots {
                for (x, y, pixel) in want.enumerate_pixels_mut() {
                    let away = (f64::from(x) + 0.5 - at[0]).hypot(f64::from(y) + 0.5 - at[1]);
                    let alpha = opacity * (radius + 0.5 - away).clamp(0., 1.);
                    for (under, &over) in pixel.0.iter_mut().zip(rgb) {
                        let (over, ground) = (f64::from(over), f64::from(*under));
                        *under = (ground + alpha * (over - ground)).round() as u8;
                    }
                }
            }
            assert!(got == want, "radius {radius}");
        }
    }
}
