//! Updates of atoms and statistics of codes by how the uses of atoms are spread.
use super::pursuit::Size;
use super::{DictionaryArgs, Row};
use crate::bench::place::Place;
use crate::bench::timing::time;
use crate::report::Report;
use anyhow::Result;
use candle::{DType, Device, Tensor};
use chandlery::Philox;
use chandlery_ops::codes::{
    AtomUpdate, AtomUses, SparseCodes, StatisticsStep, codes_statistics_, update_atoms,
};
use chandlery_ops::core::normal;

/// Signals, atoms, features, atoms of a code.
const M: usize = 200_000;
const N: usize = 256;
const P: usize = 64;
const S: usize = 10;
const SIZE: Size = Size { m: M, n: N, p: P, s: S };

/// Codes of random values whose atoms go round; `first` puts atom 0 into each.
fn codes(first: bool, device: &Device) -> candle::Result<SparseCodes> {
    let atom = |i: usize, k: usize| if first && k == 0 { 0 } else { ((i * S + k) * 97 + i) % (N - 1) + 1 };
    let indices = (0..M * S).map(|e| atom(e / S, e % S) as u32).collect();
    Ok(SparseCodes {
        indices: Tensor::from_vec(indices, (M, S), device)?,
        values: normal((M, S), device, Philox::new(16, 1))?,
        count: Tensor::full(S as u32, M, device)?,
        n_atoms: N,
    })
}

pub fn run(args: &DictionaryArgs, device: &Device, report: &Report, rows: &mut Vec<Row>) -> Result<()> {
    report.line(&format!("lists: m {M} n {N} p {P} s {S}"))?;
    for place in Place::all(device, !args.no_single)? {
        let device = &place.device;
        let signals = normal((M, P), device, Philox::new(16, 2))?;
        let atoms = normal((N, P), device, Philox::new(16, 3))?;
        let atoms = atoms.broadcast_div(&atoms.sqr()?.sum_keepdim(1)?.sqrt()?)?;
        for (spread, first) in [("even", false), ("one in all codes", true)] {
            let codes = codes(first, device)?;
            let uses = AtomUses::of(&codes)?;
            let (a, b) =
                (Tensor::zeros((N, N), DType::F32, device)?, Tensor::zeros((N, P), DType::F32, device)?);
            let update = |group| {
                let update = AtomUpdate { group, ..AtomUpdate::default() };
                update_atoms(&atoms, &codes, &uses, &signals, &update).map(drop)
            };
            let statistics = || codes_statistics_(&a, &b, &codes, &uses, &signals, StatisticsStep::default());
            let tasks: [(&str, &(dyn Fn() -> candle::Result<()> + Sync)); 3] = [
                ("update of all at once", &|| update(N)),
                ("update one by one", &|| update(1)),
                ("statistics", &statistics),
            ];
            for (task, work) in tasks {
                let ms = place
                    .run(|| time(device, args.timing.repeats, || Ok(work()?)))
                    .map(|seconds| seconds.times(1e3))?;
                let task = format!("{task}, {spread}");
                report.line(&format!("{task:<40} {:<26} {:>10.3} ms", place.name(), ms.median))?;
                rows.push(Row::new(&place, task, SIZE, ms));
            }
        }
    }
    Ok(())
}
