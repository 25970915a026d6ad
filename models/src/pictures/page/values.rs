//! Values of rows that are no pictures, for the one that the pointer is on.
use super::LeftOut;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use candle::{DType, Device, Result, Tensor};
use serde::Serialize;

/// Columns that are shown of a row, at most.
const MOST: usize = 8;

/// The first columns of rows.
#[derive(Debug, Serialize)]
pub struct Values {
    names: Vec<String>,
    /// What is added to the numbers of each column: what was subtracted from it on reading.
    base: Vec<f64>,
    /// f32 `[n, names]`, little-endian, in base64.
    cells: String,
    /// Columns that are not here.
    more: usize,
}

impl Values {
    /// Those of raw rows, `[n, n_inputs]` u8 or float, as many columns as take no more than
    /// `most_bytes`; or, where not one does, the reason. Columns go by `names`, or by their
    /// numbers; `centre` was subtracted from them, or is empty.
    ///
    /// # Errors
    /// When a row cannot be read.
    pub fn new(
        rows: &Tensor,
        names: Option<&[String]>,
        centre: &[f64],
        most_bytes: usize,
    ) -> Result<std::result::Result<Self, LeftOut>> {
        let (n, n_inputs) = rows.dims2()?;
        // Four letters of base64 for three bytes.
        let shown = n_inputs.min(MOST).min(most_bytes / (n * size_of::<f32>()).div_ceil(3).max(1) / 4);
        if shown == 0 {
            return Ok(Err(LeftOut::TooLarge));
        }
        let cells = rows.narrow(1, 0, shown)?.to_dtype(DType::F32)?.to_device(&Device::Cpu)?;
        let cells: Vec<u8> =
            cells.flatten_all()?.to_vec1::<f32>()?.into_iter().flat_map(f32::to_le_bytes).collect();
        let name = |column: usize| names.and_then(|names| names.get(column).cloned());
        Ok(Ok(Self {
            names: (0..shown).map(|c| name(c).unwrap_or_else(|| format!("column {c}"))).collect(),
            base: (0..shown).map(|c| centre.get(c).copied().unwrap_or(0.)).collect(),
            cells: STANDARD.encode(cells),
            more: n_inputs - shown,
        }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use candle::Device::Cpu;

    fn cells(values: &Values) -> Vec<f32> {
        let bytes = STANDARD.decode(&values.cells).unwrap();
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    #[test]
    fn the_first_columns_are_shown_by_name_as_far_as_there_is_room() {
        let rows = Tensor::arange(0f32, 30., &Cpu).unwrap().reshape((3, 10)).unwrap();
        let names = ["age".to_owned(), "height".to_owned()];
        let values = Values::new(&rows, Some(&names), &[100., 0.5], 1 << 20).unwrap().unwrap();
        assert_eq!((values.names.len(), values.more), (8, 2));
        assert_eq!(values.names[..3], ["age", "height", "column 2"]);
        assert_eq!(values.base[..3], [100., 0.5, 0.]);
        assert_eq!(cells(&values)[..9], [0., 1., 2., 3., 4., 5., 6., 7., 10.]);
        // A column of three rows takes sixteen letters.
        let two = Values::new(&rows, None, &[], 40).unwrap().unwrap();
        assert_eq!((two.names, two.more), (vec!["column 0".to_owned(), "column 1".to_owned()], 8));
        assert_eq!(Values::new(&rows, None, &[], 15).unwrap().err(), Some(LeftOut::TooLarge));
        let bytes = Tensor::new(&[[7u8, 255]], &Cpu).unwrap();
        assert_eq!(cells(&Values::new(&bytes, None, &[], 99).unwrap().unwrap()), [7., 255.]);
    }
}
