//! Splits made of others: rows changed as they are read, chosen, joined, and parted with as many of
//! each class.
use crate::source::{check_read, check_read_finite, row_bytes};
use crate::{Dataset, Error, Result, Rounding, RowType, Source, Split};
use candle::{DType, Device, Tensor};
use chandlery_ops::Philox;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The Philox streams that part classes: one for each, from here on.
const PARTING_STREAM: u64 = 0x7061_7274_0000_0000; // "part"
/// Bytes of rows that are changed or looked at together.
const BLOCK_BYTES: usize = 16 << 20;

impl Split {
    /// The same samples with rows that `change` makes of theirs when they are read. It is given
    /// rows as they are stored, `[b, n_features]` u8 or float on the CPU, and gives `[b, m]` u8 or
    /// floats; what it makes of a row must depend on that row alone, whatever rows come with it.
    ///
    /// Rows stay images where they keep their number of values.
    ///
    /// ```
    /// use candle::{Device, Tensor};
    /// use chandlery_datasets::Split;
    /// # fn main() -> chandlery_datasets::Result<()> {
    /// let split = Split::from_tensors(&Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?, None)?;
    /// let sums = split.map(|rows| rows.sum_keepdim(1))?;
    /// assert_eq!(sums.to_tensor(&Device::Cpu)?.to_vec2::<f32>()?, [[3.], [7.]]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// When `change` fails for the first row or gives something else; later rows are changed, and
    /// errors told, when they are read.
    pub fn map<F>(&self, change: F) -> Result<Self>
    where
        F: Fn(&Tensor) -> candle::Result<Tensor> + Send + Sync + 'static,
    {
        let first = changed(&change, self, &[0])?;
        let row_type = if first.dtype() == DType::U8 { RowType::U8 } else { RowType::F32 };
        let rows = Changed { split: self.clone(), n_features: first.dim(1)?, row_type, change };
        let image = self.image.filter(|image| image.n_features() == rows.n_features);
        Ok(Self { rows: Arc::new(rows), labels: self.labels.clone(), image })
    }

    /// The samples that `keep` takes, by the values of the row as numbers (those of bytes from 0 to 255) and its label; shares the rows.
    ///
    /// # Errors
    /// When none is left, or a row cannot be read.
    pub fn filter(&self, mut keep: impl FnMut(&[f32], Option<u32>) -> bool) -> Result<Self> {
        self.try_filter(|row, label| Ok(keep(row, label)))
    }

    /// [`filter`](Self::filter) by what can fail.
    ///
    /// # Errors
    /// The first of `keep`, and those of [`filter`](Self::filter).
    pub fn try_filter<E: From<Error>>(
        &self,
        mut keep: impl FnMut(&[f32], Option<u32>) -> Result<bool, E>,
    ) -> Result<Self, E> {
        self.check_labels()?;
        let at_once = (BLOCK_BYTES / row_bytes(self.rows.as_ref())).max(1);
        let indices: Vec<u32> = (0..self.n_samples() as u32).collect();
        let mut kept = Vec::new();
        for some in indices.chunks(at_once) {
            for (&i, row) in some.iter().zip(self.numbers(some)?.chunks_exact(self.n_features())) {
                let label = self.labels.as_deref().and_then(|labels| labels.get(i as usize));
                if keep(row, label.copied())? {
                    kept.push(i);
                }
            }
        }
        Ok(self.select(&kept)?)
    }

    /// Some rows as numbers, one after the other.
    fn numbers(&self, indices: &[u32]) -> Result<Vec<f32>> {
        let rows = self.gather(indices, &Device::Cpu)?.flatten_all()?;
        Ok(rows.to_dtype(DType::F32)?.to_vec1()?)
    }

    /// The samples whose label `keep` takes; reads no rows.
    ///
    /// # Errors
    /// When there are no labels, or none is left.
    pub fn filter_labels(&self, mut keep: impl FnMut(u32) -> bool) -> Result<Self> {
        let Some(labels) = &self.labels else { return Err(crate::memory::no_labels("Split::filter_labels")) };
        let kept: Vec<u32> = (0..).zip(labels.iter()).filter(|&(_, &l)| keep(l)).map(|(i, _)| i).collect();
        self.select(&kept)
    }

    /// The samples of all `parts`, one after the other; shares the rows, which are dense.
    ///
    /// # Errors
    /// When there are no parts; when rows differ in size, type, image or centre; when some have
    /// labels and others none.
    pub fn concat(parts: &[Self]) -> Result<Self> {
        let [first, others @ ..] = parts else {
            return Err(Error::Argument("Split::concat: there must be at least one part".to_owned()));
        };
        let centre = |split: &Self| split.rows.rounding().map(|r| r.centre.clone()).unwrap_or_default();
        for (i, part) in (1..).zip(others) {
            part.check_labels()?;
            let differ = match () {
                () if part.n_features() != first.n_features() => "n_features",
                () if part.row_type() != first.row_type() => "type",
                () if part.image != first.image => "image",
                () if centre(part) != centre(first) => "centre",
                () if part.labels.is_some() != first.labels.is_some() => "labels or none",
                () => continue,
            };
            return Err(Error::Argument(format!(
                "Split::concat: all parts must have the same {differ}, but part {i} differs from part 0"
            )));
        }
        first.check_labels()?;
        let labels = first.labels.as_ref().map(|_| {
            parts
                .iter()
                .flat_map(|part| part.labels.iter().flat_map(|labels| labels.iter().copied()))
                .collect()
        });
        let rows = Joined::of(parts.iter().map(|part| part.rows.clone()).collect());
        Self::new(Arc::new(rows), labels)?.with_image(first.image)
    }

    /// Draws `fraction` of the samples without replacement, of each class as many in proportion up
    /// to one, and returns `(the others, those)`, each in the order of the file. Without labels
    /// they are drawn from all.
    ///
    /// The same `seed` draws the same.
    ///
    /// # Errors
    /// When `fraction` is not between 0 and 1, or leaves nothing on one side.
    pub fn split(&self, fraction: f64, seed: u64) -> Result<(Self, Self)> {
        self.check_labels()?;
        let n_samples = self.n_samples();
        let n = (fraction * n_samples as f64).round();
        if !(1. ..n_samples as f64).contains(&n) {
            return Err(Error::Argument(format!(
                "Split::split: fraction must leave rows on both sides, got {fraction} of {n_samples}"
            )));
        }
        let mut classes: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for i in 0..n_samples {
            let label = self.labels.as_deref().and_then(|labels| labels.get(i));
            classes.entry(label.copied().unwrap_or(0)).or_default().push(i as u32);
        }
        // The rows of each class at even distances from 0 to 1: those below a number are the same
        // part of each class, up to one.
        let mut places: Vec<(f64, u32)> = Vec::with_capacity(n_samples);
        for (&class, rows) in &classes {
            let order = Philox::new(seed, PARTING_STREAM + u64::from(class)).permutation(rows.len());
            let place = |rank: usize| (rank as f64 + 0.5) / rows.len() as f64;
            places.extend(order.iter().enumerate().map(|(rank, &i)| (place(rank), rows[i as usize])));
        }
        places.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut drawn: Vec<u32> = places.iter().map(|&(_, row)| row).collect();
        let mut others = drawn.split_off(n as usize);
        drawn.sort_unstable();
        others.sort_unstable();
        Ok((self.select(&others)?, self.select(&drawn)?))
    }
}

impl Dataset {
    /// The same with what `change` makes of each split, such as [`Split::map`] or
    /// [`Split::filter`].
    ///
    /// # Errors
    /// Those of `change`, and when splits no longer belong together.
    pub fn map_splits<E: From<Error>>(
        self,
        mut change: impl FnMut(&Split) -> Result<Split, E>,
    ) -> Result<Self, E> {
        let (train, test) = (change(&self.train)?, self.test.as_ref().map(change).transpose()?);
        let column_names = self.column_names.filter(|names| names.len() == train.n_features());
        let new = Self::new(self.name, train, test, self.class_names)?;
        Ok(Self { column_names, left_out_labels: self.left_out_labels, notes: self.notes, ..new })
    }

    /// The same with `fraction` of the training rows to test on instead, drawn by [`Split::split`];
    /// rows to test on that are there stay.
    ///
    /// # Errors
    /// Those of [`Split::split`].
    pub fn split(mut self, fraction: f64, seed: u64) -> Result<Self> {
        if self.test.is_none() {
            let (train, test) = self.train.split(fraction, seed)?;
            (self.train, self.test) = (train, Some(test));
        }
        Ok(self)
    }
}

/// What `change` makes of some rows, in the types of rows.
fn changed(
    change: impl Fn(&Tensor) -> candle::Result<Tensor>,
    split: &Split,
    indices: &[u32],
) -> Result<Tensor> {
    let rows = change(&split.gather(indices, &Device::Cpu)?)?;
    match rows.dims() {
        &[n, m] if n == indices.len() && m > 0 => {}
        dims => {
            return Err(Error::Argument(format!(
                "Split::map: [{}, m] must come of as many rows, got {dims:?}",
                indices.len()
            )));
        }
    }
    match rows.dtype() {
        DType::U8 => Ok(rows),
        dtype if dtype.is_float() => Ok(rows.to_dtype(DType::F32)?),
        other => Err(Error::Argument(format!("Split::map: rows must become u8 or floats, got {other:?}"))),
    }
}

/// Rows that are changed when they are read.
struct Changed<F> {
    split: Split,
    n_features: usize,
    row_type: RowType,
    change: F,
}

impl<F> std::fmt::Debug for Changed<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Changed").field("split", &self.split).field("n_features", &self.n_features).finish()
    }
}

impl<F: Fn(&Tensor) -> candle::Result<Tensor> + Send + Sync> Source for Changed<F> {
    fn n_samples(&self) -> usize {
        self.split.n_samples()
    }

    fn n_features(&self) -> usize {
        self.n_features
    }

    fn row_type(&self) -> RowType {
        self.row_type
    }

    fn read_rows(&self, indices: &[u32], out: &mut [u8]) -> Result<()> {
        check_read(self, indices, out)?;
        let size = row_bytes(self);
        let at_once = (BLOCK_BYTES / size.max(row_bytes(self.split.rows.as_ref()))).max(1);
        for (indices, out) in indices.chunks(at_once).zip(out.chunks_mut(size * at_once)) {
            let rows = changed(&self.change, &self.split, indices)?;
            if (rows.dim(1)?, rows.dtype()) != (self.n_features, self.row_type.dtype()) {
                return Err(Error::Argument(format!(
                    "Split::map: the first row became {} of {:?}, others {} of {:?}",
                    crate::count(self.n_features, "value"),
                    self.row_type.dtype(),
                    rows.dim(1)?,
                    rows.dtype()
                )));
            }
            let flat = rows.flatten_all()?;
            match self.row_type {
                RowType::U8 => out.copy_from_slice(&flat.to_vec1::<u8>()?),
                _ => out.copy_from_slice(bytemuck::cast_slice(&flat.to_vec1::<f32>()?)),
            }
            check_read_finite("Split::map", self, indices, out)?;
        }
        Ok(())
    }

    fn origin(&self, row: usize) -> usize {
        self.split.rows.origin(row)
    }
}

/// Rows of several sources, one after the other.
#[derive(Debug)]
struct Joined {
    parts: Vec<Arc<dyn Source>>,
    /// Rows of all parts up to each, which it counts.
    ends: Vec<usize>,
}

impl Joined {
    fn of(parts: Vec<Arc<dyn Source>>) -> Self {
        let mut end = 0;
        let ends = parts.iter().map(|part| {
            end += part.n_samples();
            end
        });
        Self { ends: ends.collect(), parts }
    }

    /// The part of a row, and its number there.
    fn place(&self, row: usize) -> (usize, usize) {
        let part = self.ends.partition_point(|&end| end <= row);
        (part, row - part.checked_sub(1).map_or(0, |before| self.ends[before]))
    }
}

impl Source for Joined {
    fn n_samples(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    fn n_features(&self) -> usize {
        self.parts.first().map_or(0, |part| part.n_features())
    }

    fn row_type(&self) -> RowType {
        self.parts.first().map_or(RowType::U8, |part| part.row_type())
    }

    fn rounding(&self) -> Option<&Rounding> {
        self.parts.iter().find_map(|part| part.rounding())
    }

    fn read_rows(&self, indices: &[u32], out: &mut [u8]) -> Result<()> {
        check_read(self, indices, out)?;
        let size = row_bytes(self);
        // Places in `out` and rows, by parts.
        let mut of_parts = vec![(vec![], vec![]); self.parts.len()];
        for (to, &i) in (0u32..).zip(indices) {
            let (part, row) = self.place(i as usize);
            if let Some((places, rows)) = of_parts.get_mut(part) {
                places.push(to);
                rows.push(row as u32);
            }
        }
        let mut rows = Vec::new();
        for (part, (places, there)) in self.parts.iter().zip(&of_parts) {
            if there.len() == indices.len() {
                return part.read_rows(there, out);
            }
            rows.resize(there.len() * size, 0);
            part.read_rows(there, &mut rows)?;
            for (&to, row) in places.iter().zip(rows.chunks_exact(size)) {
                let to = to as usize * size;
                out[to..to + size].copy_from_slice(row);
            }
        }
        Ok(())
    }

    fn will_read(&self, rows: Range<usize>) {
        let mut row = rows.start;
        while row < rows.end.min(self.n_samples()) {
            let (part, first) = self.place(row);
            let end = self.ends.get(part).map_or(rows.end, |&end| end.min(rows.end));
            if let Some(part) = self.parts.get(part) {
                part.will_read(first..first + (end - row));
            }
            row = end;
        }
    }

    fn origin(&self, row: usize) -> usize {
        let (part, row) = self.place(row);
        self.parts.get(part).map_or(row, |part| part.origin(row))
    }
}
