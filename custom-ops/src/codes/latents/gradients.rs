//! Gradients of encoder and decoder, latent by latent.
use super::groups::{check_groups, group_of};
use super::types::{FLOATS, on_device, wide_type};
use crate::codes::atoms::{dot, weighted_sum};
use crate::codes::{AtomUses, SparseCodes};
use crate::core::check::{expect, expect_aligned, matrix};
use crate::core::fused::Fused;
use crate::core::op::{In, Io, Kernel, Operands, new_tensor, operands};
use candle::{CpuStorage, DType, Result, Tensor};
use rayon::prelude::*;

const OP: &str = "latent_gradients";
/// Bytes that what is read and written side by side begins on.
pub(super) const ALIGN: usize = 16;
/// Latents of a task.
pub(super) const LATENTS: usize = 16;

/// What the gradients of encoder and decoder are summed from; shapes as in the
/// [module](crate::codes::latents).
#[derive(Debug, Clone, Copy)]
pub struct LatentGradients<'a> {
    /// What each row takes of the decoder, `[blocks · batch, s]`.
    pub codes: &'a SparseCodes,
    /// The uses of `codes`.
    pub uses: &'a AtomUses,
    /// Gradient of the loss at the pre-activation of each entry, `[blocks · batch, s]`.
    pub pre: &'a Tensor,
    /// What the encoder read, `[batch, d_in]`, f32, f64 or bf16.
    pub x: &'a Tensor,
    /// Gradient of the loss at each reconstruction, of the type of `x`: `[batch, d_out]` of each
    /// group of latents for the first block of codes, then `[batch, d_out]` of each other block.
    pub errors: &'a Tensor,
    /// Ends of groups of latents, as of [`code_errors`](super::code_errors).
    pub ends: &'a [usize],
    /// Gradient of the loss at the length of each decoder row, `[n]`. Default none.
    pub lengths: Option<&'a Tensor>,
    /// Whether rows of the decoder keep length 1: what of a gradient is along its row is taken out.
    pub unit: bool,
}

/// Sizes that were checked.
#[derive(Debug, Clone)]
pub(super) struct Sizes {
    pub n: usize,
    pub d_in: usize,
    pub d_out: usize,
    pub s: usize,
    pub batch: usize,
    pub ends: Vec<usize>,
    pub unit: bool,
    /// Of `x` and the errors.
    pub rows: DType,
    /// Of everything else.
    pub dtype: DType,
}

impl<'a> LatentGradients<'a> {
    /// Checks shapes and types.
    pub(super) fn sizes(&self, op: &str) -> Result<Sizes> {
        let (of_rows, dtype) = (self.x.dtype(), wide_type(self.x.dtype()));
        let (batch, d_in) = matrix(op, "x", "[batch, d_in]", self.x, &FLOATS)?;
        let (of_errors, d_out) = matrix(op, "errors", "[blocks · batch, d_out]", self.errors, &[of_rows])?;
        let (n, s) = (self.codes.n_atoms, self.codes.width());
        let rows = self.codes.count.elem_count();
        if batch == 0 || rows == 0 || !rows.is_multiple_of(batch) || d_in == 0 || d_out == 0 || n == 0 {
            candle::bail!(
                "{op}: codes must be blocks of the {batch} rows of x, at least one, of one feature or more, got {rows} rows for x {:?}",
                self.x.dims()
            )
        }
        check_groups(op, self.ends, n)?;
        if of_errors != rows + (self.ends.len() - 1) * batch {
            candle::bail!(
                "{op}: errors must be {} groups of {batch} rows and those of each other block, got {of_errors} rows for codes of {rows}",
                self.ends.len()
            )
        }
        expect(op, "codes.values", &self.codes.values, &[dtype], &[rows, s])?;
        expect(op, "pre", self.pre, &[dtype], &[rows, s])?;
        self.uses.check(op, self.codes)?;
        if let Some(lengths) = self.lengths {
            expect(op, "lengths", lengths, &[dtype], &[n])?;
        }
        Ok(Sizes {
            n,
            d_in,
            d_out,
            s,
            batch,
            ends: self.ends.to_vec(),
            unit: self.unit,
            rows: of_rows,
            dtype,
        })
    }

    /// What the kernel reads, in the order of [`Sums::of`].
    pub(super) fn read(&self, io: Operands<'a>) -> Operands<'a> {
        let io = io.read("uses", self.uses.offsets()).read("uses", self.uses.entries());
        let io = io.read("codes.values", &self.codes.values).read("pre", self.pre);
        io.read("x", self.x).read("errors", self.errors).maybe("lengths", self.lengths)
    }
}

/// The gradients of encoder and decoder, `[n, d_in]` and `[n, d_out]`; rows of latents without uses
/// are 0.
///
/// `decoder` is `[n, d_out]`, contiguous, of the type of the values. Cost: `2 (d_in + d_out)` FLOP
/// an entry, and one write of the result.
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn latent_gradients(of: &LatentGradients<'_>, decoder: &Tensor) -> Result<(Tensor, Tensor)> {
    let sizes = of.sizes(OP)?;
    let &Sizes { n, d_in, d_out, dtype, .. } = &sizes;
    expect(OP, "decoder", decoder, &[dtype], &[n, d_out])?;
    expect_aligned(OP, "decoder", decoder, ALIGN)?;
    let (x, errors) = (&on_device(of.x)?, &on_device(of.errors)?);
    let of = LatentGradients { x, errors, ..*of };
    let new = |d| new_tensor(OP, (n, d), dtype, of.x.device());
    let (encoder_gradient, decoder_gradient) = (new(d_in)?, new(d_out)?);
    let io = operands(OP).write("the result", &encoder_gradient).write("the result", &decoder_gradient);
    of.read(io).read("decoder", decoder).run(&Gradients(Sizes { rows: x.dtype(), ..sizes }))?;
    Ok((encoder_gradient, decoder_gradient))
}

/// What the CPU sums from.
pub(super) struct Sums<'a, T> {
    sizes: &'a Sizes,
    offsets: &'a [u32],
    entries: &'a [u32],
    values: &'a [T],
    pre: &'a [T],
    x: &'a [T],
    errors: &'a [T],
    lengths: Option<&'a [T]>,
}

/// Room for the lists of a latent.
#[derive(Debug, Default)]
pub(super) struct Lists<T> {
    rows: Vec<u32>,
    weights: Vec<T>,
}

impl<T: Copy> Lists<T> {
    /// The rows that entries belong to, and their weights.
    fn of(&mut self, entries: &[u32], weights: &[T], row: impl Fn(usize) -> usize) -> (&[u32], &[T]) {
        self.rows.clear();
        self.weights.clear();
        self.rows.extend(entries.iter().map(|&e| row(e as usize) as u32));
        self.weights.extend(entries.iter().map(|&e| weights[e as usize]));
        (&self.rows, &self.weights)
    }
}

impl<'a, T: Fused> Sums<'a, T> {
    pub(super) fn of(sizes: &'a Sizes, read: [In<'a, CpuStorage>; 7]) -> Result<Self> {
        let [offsets, entries, values, pre, x, errors, lengths] = read;
        Ok(Self {
            sizes,
            offsets: offsets.elements()?,
            entries: entries.elements()?,
            values: values.elements()?,
            pre: pre.elements()?,
            x: x.elements()?,
            errors: errors.elements()?,
            lengths: lengths.maybe()?,
        })
    }

    /// Writes the gradients of latent `j`, whose row of the decoder is `atom`.
    pub(super) fn write(
        &self,
        j: usize,
        atom: &[T],
        lists: &mut Lists<T>,
        encoder_gradient: &mut [T],
        decoder_gradient: &mut [T],
    ) {
        let &Sizes { s, batch, ref ends, unit, .. } = self.sizes;
        let (own, later) = (group_of(ends, j) * batch, (ends.len() - 1) * batch);
        let list = &self.entries[self.offsets[j] as usize..self.offsets[j + 1] as usize];
        let (rows, weights) = lists.of(list, self.pre, |e| e / s % batch);
        weighted_sum(self.x, rows, weights, encoder_gradient);
        let (rows, weights) = lists.of(list, self.values, |e| match e / s {
            row if row < batch => own + row,
            row => later + row,
        });
        weighted_sum(self.errors, rows, weights, decoder_gradient);
        let add = |gradient: &mut [T], factor: T| {
            gradient.iter_mut().zip(atom).for_each(|(g, &d)| *g += factor * d);
        };
        if let Some(lengths) = self.lengths {
            let norm = dot(atom, atom).to_f64().sqrt();
            let factor = if norm > 0. { lengths[j].to_f64() / norm } else { 0. };
            add(decoder_gradient, T::from_f64(factor));
        }
        if unit {
            let along = dot(decoder_gradient, atom);
            add(decoder_gradient, T::from_f64(-along.to_f64()));
        }
    }
}

pub(super) struct Gradients(pub Sizes);

impl Kernel for Gradients {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let &Sizes { d_in, d_out, dtype, .. } = &self.0;
        for_float!(dtype, |T| {
            let ([to_encoder, to_decoder], [a, b, c, d, e, f, g, decoder]) = io.parts()?;
            let sums = Sums::<T>::of(&self.0, [a, b, c, d, e, f, g])?;
            let decoder = decoder.elements::<T>()?;
            let rows = to_encoder.elements::<T>()?.par_chunks_exact_mut(d_in);
            let rows = rows.zip(to_decoder.elements::<T>()?.par_chunks_exact_mut(d_out));
            rows.enumerate().with_min_len(LATENTS).for_each_init(
                Lists::default,
                |lists, (j, (to_encoder, to_decoder))| {
                    sums.write(j, &decoder[j * d_out..][..d_out], lists, to_encoder, to_decoder);
                },
            );
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        for_latents!(self.0.rows, |T, V| self.launch::<T, V>(gpu, io))
    }
}
