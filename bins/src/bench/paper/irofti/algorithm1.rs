//! Algorithm 1 as printed, by the Cholesky factor, beside our inverse Cholesky form.
use super::seconds;
use crate::bench::dictionary::data;
use crate::bench::dictionary::pursuit::Size;
use crate::bench::paper::{Cell, Paper, Table};
use anyhow::{Context, Result};
use candle::{DType, Device, Tensor};
use chandlery_ops::codes::{Pursuit, SparseCodes, bomp, bomp_cholesky};

/// The paper's largest sizes, and longer codes.
const SIZES: [Size; 4] = [
    Size { m: 10_240, n: 128, p: 64, s: 8 },
    Size { m: 8192, n: 512, p: 64, s: 8 },
    Size { m: 20_480, n: 256, p: 64, s: 10 },
    Size { m: 4096, n: 512, p: 64, s: 32 },
];

pub fn make(paper: &mut Paper) -> Result<()> {
    let places = paper.places()?;
    let mut table = Table::new(
        "Algorithm 1: Batch-OMP by the Cholesky factor, as printed, and by its inverse, ours",
        &[
            "signals x atoms x values x nonzero",
            "on",
            "as printed",
            "ours",
            "factor",
            "same atoms, %",
            "‖y − xD‖ / ‖y‖, printed",
            "ours",
            "printed in f64, same atoms, %",
        ],
    );
    let sizes = if paper.quick() { &SIZES[..2] } else { &SIZES[..] };
    for &size in sizes {
        let Size { m, n, p, s } = size;
        let (signals, atoms) =
            (data::patches(m, p.isqrt(), &Device::Cpu)?, data::atoms(n, p.isqrt(), &Device::Cpu)?);
        let wide = |x: &Tensor| x.to_dtype(DType::F64);
        let pursuit = Pursuit::new(s);
        let in_f64 = [
            bomp_cholesky(&wide(&signals)?, &wide(&atoms)?, s)?,
            bomp(&wide(&signals)?, &wide(&atoms)?, &pursuit)?,
        ];
        for place in places.iter().filter(|place| place.device.is_cpu()) {
            let (mut printed, mut ours) = (None, None);
            let by_printed = seconds(place, paper.repeats(), || {
                printed = Some(bomp_cholesky(&signals, &atoms, s)?);
                Ok(())
            })?;
            let by_ours = seconds(place, paper.repeats(), || {
                ours = Some(bomp(&signals, &atoms, &pursuit)?);
                Ok(())
            })?;
            let (printed, ours) = (printed.context("no codes")?, ours.context("no codes")?);
            table.row(vec![
                Cell::text(size.to_string()),
                Cell::text(place.name()),
                Cell::seconds(by_printed),
                Cell::seconds(by_ours),
                Cell::factor(by_printed / by_ours),
                Cell::number(100. * same(&printed, &ours)?, 2),
                Cell::number(left(&printed, &signals, &atoms)?, 5),
                Cell::number(left(&ours, &signals, &atoms)?, 5),
                Cell::number(100. * same(&in_f64[0], &in_f64[1])?, 2),
            ]);
        }
    }
    table.note("both forms compute DᵀY and DᵀD by the same products; a step of the printed form reads k rows of DᵀD and solves two triangular systems, a step of ours reads one row");
    table.note("in f32, atoms differ where two candidates are as good as each other within rounding");
    paper.table(table)
}

/// The share of signals with the same atoms in the same order.
fn same(a: &SparseCodes, b: &SparseCodes) -> Result<f64> {
    let rows = |codes: &SparseCodes| codes.indices.to_vec2::<u32>();
    let (a, b) = (rows(a)?, rows(b)?);
    Ok(a.iter().zip(&b).filter(|(a, b)| a == b).count() as f64 / a.len().max(1) as f64)
}

/// What codes leave of all signals.
fn left(codes: &SparseCodes, signals: &Tensor, atoms: &Tensor) -> Result<f64> {
    let norm = |x: &Tensor| x.to_dtype(DType::F64)?.sqr()?.sum_all()?.to_scalar::<f64>();
    Ok((norm(&codes.residual(signals, atoms)?)? / norm(signals)?).sqrt())
}
