//! Coherence, and what holds for every op on atoms.
use super::common::{CPU, difference, problem, unit_rows};
use candle::{DType, Result, Tensor};
use chandlery_ops::codes::{
    AtomLength, AtomUpdate, AtomUses, SparseCodes, StatisticsStep, atom_coherence, atom_coherence_,
    atom_coherence_reference, codes_statistics_, descend_atoms_, row_squares, update_atoms,
};

#[test]
fn coherence_is_that_with_the_atoms_before() -> Result<()> {
    for (n, p) in [(1, 3), (7, 2), (90, 20), (300, 64)] {
        let d = (unit_rows(n, p, 8, DType::F32)? * 3.)?;
        let off = difference(&atom_coherence(&d)?, &atom_coherence_reference(&d)?)?;
        assert!(off < 1e-6, "n {n}: {off}");
    }
    // The third is the first with another sign; the fourth is zero.
    let d = Tensor::new(&[[1f32, 0.], [0., 2.], [-3., 0.], [0., 0.]], &CPU)?;
    assert_eq!(atom_coherence(&d)?.to_vec1::<f64>()?, [0., 0., 1., 0.]);
    let d = Tensor::new(&[[1f32, 0.], [f32::NAN, 2.], [0., 1.]], &CPU)?;
    let like = atom_coherence(&d)?.to_vec1::<f64>()?;
    assert!(like[0] == 0. && like[1].is_nan() && like[2].is_nan(), "a NaN shows: {like:?}");
    Ok(())
}

#[test]
fn coherence_may_be_written_into_a_longer_tensor() -> Result<()> {
    let d = unit_rows(7, 3, 8, DType::F32)?;
    let all = Tensor::full(-1f64, 12, &CPU)?;
    atom_coherence_(&all.narrow(0, 3, 7)?, &d)?;
    let (all, want) = (all.to_vec1::<f64>()?, atom_coherence(&d)?.to_vec1::<f64>()?);
    assert_eq!((&all[..3], &all[3..10], &all[10..]), (&[-1.; 3][..], &want[..], &[-1.; 2][..]));
    Ok(())
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() -> Result<()> {
    // Lists longer than 512, sums over several blocks, groups that follow each other; several parts
    // of the sort.
    let run = |threads, group| -> Result<Vec<Vec<u32>>> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        pool.install(|| {
            let (y, d, codes) = problem([30_000, 9, 64, 3], DType::F32)?;
            let uses = AtomUses::of(&codes)?;
            let error = codes.residual(&y, &d)?;
            let update = AtomUpdate { group, power_steps: 2, tolerance: 0., ..AtomUpdate::default() };
            let (updated, codes) = update_atoms(&d, &codes, &uses, &error, &update)?;
            let (a, b) =
                (Tensor::zeros((9, 9), DType::F32, &CPU)?, Tensor::zeros((9, 64), DType::F32, &CPU)?);
            codes_statistics_(&a, &b, &codes, &uses, &y, StatisticsStep::default())?;
            let moved = updated.copy()?;
            descend_atoms_(&moved, &a, &b, 0, AtomLength::One)?;
            let squares = row_squares(&error)?.to_dtype(DType::F32)?;
            [updated, codes.values, a, b, moved, squares]
                .iter()
                .map(|t| Ok(t.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect()))
                .collect()
        })
    };
    for group in [1, 4, 9] {
        let one = run(1, group)?;
        for threads in [2, 5] {
            assert!(run(threads, group)? == one, "group {group}: {threads} threads give other bits than one");
        }
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused_with_the_reason() -> Result<()> {
    let (y, d, codes) = problem([5, 3, 2, 1], DType::F32)?;
    let uses = AtomUses::of(&codes)?;
    let error = codes.residual(&y, &d)?;
    let says = |got: Result<()>, want: &str| {
        let message = got.expect_err("accepted").to_string();
        assert_eq!(message.lines().next(), Some(want));
    };
    let run = |update: AtomUpdate| update_atoms(&d, &codes, &uses, &error, &update).map(|_| ());
    says(
        run(AtomUpdate { group: 0, ..AtomUpdate::default() }),
        "update_atoms: group must be at least 1, got 0",
    );
    says(
        run(AtomUpdate { coherence_penalty: -1., ..AtomUpdate::default() }),
        "update_atoms: coherence_penalty must be a finite number of at least 0, got -1",
    );
    says(
        update_atoms(&d, &codes, &uses, &error.narrow(0, 0, 4)?, &AtomUpdate::default()).map(|_| ()),
        "update_atoms: error must have shape [5, 2], got [4, 2]",
    );
    says(
        update_atoms(&d, &codes, &uses, &error.to_dtype(DType::F64)?, &AtomUpdate::default()).map(|_| ()),
        "update_atoms: error must be f32, got F64",
    );
    let far = SparseCodes { indices: (&codes.indices + 3.)?, ..codes.clone() };
    says(
        AtomUses::of(&far).map(|_| ()),
        &format!(
            "AtomUses::of: indices must be below n_atoms 3, got {} for signal 0",
            3 + codes.indices.get(0)?.to_vec1::<u32>()?[0]
        ),
    );
    let (other, _, few) = problem([4, 3, 2, 1], DType::F32)?;
    let a = Tensor::zeros((3, 3), DType::F32, &CPU)?;
    // Lists of other codes do not vouch for these.
    let first = 3 + codes.indices.get(0)?.to_vec1::<u32>()?[0];
    says(
        codes_statistics_(
            &a,
            &d,
            &far,
            &uses,
            &Tensor::zeros((5, 2), DType::F32, &CPU)?,
            StatisticsStep::default(),
        ),
        &format!("codes_statistics_: codes.indices must be below 3, the number of atoms, got {first}"),
    );
    says(
        codes_statistics_(&a, &d, &few, &uses, &other, StatisticsStep::default()),
        "codes_statistics_: uses must be those of the codes, of shape [5, 1] over 3 atoms, got codes [4, 1] over 3",
    );
    Ok(())
}
