//! Atoms of at least 0, and with nonnegative codes a nonnegative matrix factorisation.
use super::{CPU, RULES, first_line};
use candle::{DType, Result, Tensor};
use chandlery::FullBatchTrainer;
use chandlery::dictionary::{
    Dictionary, DictionaryConfig, DictionaryTrainConfig, DictionaryTrainer, Init,
    OnlineDictionaryTrainConfig, OnlineDictionaryTrainer, PursuitMethod, UpdateRule, init,
};
use chandlery_ops::Philox;
use chandlery_ops::core::{normal, uniform};

/// Parts, their values, and rows made of them.
const PARTS: usize = 6;
const WIDTH: usize = 24;
const ROWS: usize = 300;

/// Parts of at least 0 that overlap, `[PARTS, WIDTH]`, of length 1.
fn parts() -> Result<Tensor> {
    let mut rows = vec![vec![0f64; WIDTH]; PARTS];
    for (j, row) in rows.iter_mut().enumerate() {
        (0..6).for_each(|c| row[(4 * j + c) % WIDTH] = 1. + (c * (j + 2)) as f64 % 5.);
    }
    super::unit_rows(&Tensor::new(rows, &CPU)?)
}

/// Rows that are sums of up to three parts.
fn rows() -> Result<Tensor> {
    let weights = uniform((ROWS, PARTS), &CPU, Philox::new(3, 1))?.to_dtype(DType::F64)?;
    let kept: Vec<f64> = (0..ROWS)
        .flat_map(|i| {
            let order = Philox::new(3, 10 + i as u64).permutation(PARTS);
            (0..PARTS as u32).map(move |j| if order[..3].contains(&j) { 1. } else { 0. })
        })
        .collect();
    (weights * Tensor::from_vec(kept, (ROWS, PARTS), &CPU)?)?.matmul(&parts()?)
}

fn config(n_nonzero: usize) -> DictionaryConfig {
    DictionaryConfig {
        method: PursuitMethod::Ols,
        nonnegative: true,
        nonnegative_atoms: true,
        ..DictionaryConfig::new(PARTS, WIDTH, n_nonzero)
    }
}

fn beginning(y: &Tensor) -> Result<Dictionary> {
    Dictionary::from_tensor(config(3), init(&Init::RandomSignals, PARTS, y, Philox::new(4, 0))?)
}

/// The least number of the atoms, and the smallest over the parts of the largest cosine with an
/// atom.
fn judged(dictionary: &Dictionary) -> Result<(f64, f64)> {
    let least = dictionary.atoms().min_all()?.to_scalar()?;
    let found = parts()?.matmul(&dictionary.atoms().t()?)?.max(1)?.min_all()?.to_scalar()?;
    Ok((least, found))
}

#[test]
fn rows_made_of_nonnegative_parts_give_them_back() -> Result<()> {
    let y = rows()?;
    let (_, at_start) = judged(&beginning(&y)?)?;
    assert!(at_start < 0.95, "the start must not be the answer: {at_start}");
    let training =
        DictionaryTrainConfig { rule: UpdateRule::Sgk, group: 1, ..DictionaryTrainConfig::default() };
    let mut trainer = DictionaryTrainer::new(beginning(&y)?, &y, training, Philox::new(7, 0))?;
    let before = trainer.last().rmse;
    trainer.fit()?;
    let (least, found) = judged(trainer.best())?;
    assert!(least >= 0. && found > 0.999, "least {least}, worst part found to {found}");
    assert!(trainer.best_rmse() < 0.02 * before, "{before} to {}", trainer.best_rmse());
    assert!(trainer.codes().values.min_all()?.to_scalar::<f64>()? >= 0.);

    let mut online = OnlineDictionaryTrainer::new(
        beginning(&y)?,
        OnlineDictionaryTrainConfig::default(),
        Philox::new(7, 0),
    )?;
    for batch in 0..120 {
        online.partial_fit(&y.narrow(0, batch % 3 * 100, 100)?)?;
        assert!(judged(online.dictionary())?.0 >= 0.);
    }
    let (_, found) = judged(online.dictionary())?;
    assert!(found > 0.999, "worst part found to {found}");
    Ok(())
}

#[test]
fn every_rule_keeps_atoms_at_least_0_or_says_that_it_does_not() -> Result<()> {
    // Rows of either sign, from which new atoms are taken too.
    let y = normal((200, WIDTH), &CPU, Philox::new(5, 0))?.to_dtype(DType::F64)?;
    for rule in RULES {
        for group in [1, 4, usize::MAX] {
            let training = DictionaryTrainConfig {
                rule,
                group,
                coherence_penalty: if rule == UpdateRule::Mod { 0. } else { 0.01 },
                min_uses: 110,
                ..DictionaryTrainConfig::default()
            };
            match DictionaryTrainer::new(beginning(&y)?, &y, training, Philox::new(7, 0)) {
                Ok(mut trainer) => {
                    assert!(matches!(rule, UpdateRule::Sgk | UpdateRule::Nsgk), "{rule:?}");
                    let mut replaced = 0;
                    for _ in 0..5 {
                        trainer.step()?;
                        replaced += trainer.last().replaced;
                        assert!(judged(trainer.current())?.0 >= 0., "{rule:?}, {group} at a time");
                    }
                    assert!(replaced > 0, "new atoms were to be seen");
                }
                Err(err) => {
                    let text = first_line(err);
                    assert!(text.contains("rule must be sgk or nsgk"), "{text}");
                    assert!(text.contains(rule.name()), "{text}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn single_atoms_by_sgk_are_those_of_the_plain_rule_where_nothing_is_below_0() -> Result<()> {
    // With one atom a row and rows of at least 0 the best atoms are at least 0 anyway.
    let y = rows()?;
    let of = |nonnegative_atoms| -> Result<Tensor> {
        let config = DictionaryConfig { nonnegative_atoms, ..config(1) };
        let start = Dictionary::from_tensor(config, beginning(&y)?.atoms().clone())?;
        let training =
            DictionaryTrainConfig { rule: UpdateRule::Sgk, group: 1, ..DictionaryTrainConfig::default() };
        let mut trainer = DictionaryTrainer::new(start, &y, training, Philox::new(7, 0))?;
        trainer.step()?;
        Ok(trainer.current().atoms().clone())
    };
    assert!(super::difference(&of(true)?, &of(false)?)? < 1e-12);
    Ok(())
}

#[test]
fn fixed_atoms_must_be_at_least_0_already() -> Result<()> {
    let y = rows()?;
    let atoms = beginning(&y)?.atoms().copy()?;
    atoms.slice_set(&(atoms.narrow(0, 3, 1)? * -1.)?, 0, 0)?;
    let start = Dictionary::from_tensor(config(3), atoms)?;
    let training = OnlineDictionaryTrainConfig { n_fixed: 2, ..OnlineDictionaryTrainConfig::default() };
    let err = OnlineDictionaryTrainer::new(start, training, Philox::new(7, 0))
        .map(drop)
        .expect_err("one is negative");
    assert!(first_line(err).contains("the 2 fixed atoms must be at least 0"));
    Ok(())
}
