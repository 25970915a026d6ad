//! Ranks that share lines of windows reach what one rank reaches, up to the order of sums.
use super::rbm::{
    Case, cases, checkpoints_go_on, config, every_number_learns_alike, layers_are_alike, refused,
};
use super::{CPU, each};
use candle::Result;
use chandlery::dbn::{Dbn, DbnConfig};
use chandlery::patch_rbm::PatchGrid;
use chandlery::rbm::{Rbm, RbmConfig, RbmTrainConfig, RbmTrainer, VisibleUnit};
use chandlery::{Philox, Trainer};

/// Seven lines of two windows, of which three cover a line of places; one of four ranks has one line.
const OVERLAPPING: PatchGrid = PatchGrid { planes: 1, height: 9, width: 4, depth: 1, window: 3, stride: 1 };

/// Drawn rows and visible units, of chains that go on.
fn drawn() -> RbmTrainConfig {
    RbmTrainConfig { binarize: true, persistent: true, k: 2, ..config() }
}

/// Grids whose values lie in other ways than lines of one plane.
fn grids() -> Result<Vec<Case>> {
    let of = |grid, hidden| RbmConfig::patches(grid, hidden);
    let colours = of(PatchGrid { planes: 3, ..OVERLAPPING }, 2)?;
    let gaussian = RbmConfig { visible: VisibleUnit::Gaussian, ..colours.clone() };
    let slow = RbmTrainConfig { learning_rate: 0.01.into(), sample_visible: true, ..config() };
    // Cells of 64 values: 4 planes of 4 x 4.
    let cells = of(PatchGrid { planes: 4, height: 24, width: 8, depth: 1, window: 8, stride: 4 }, 4)?;
    let apart = of(PatchGrid { height: 10, window: 2, stride: 2, ..OVERLAPPING }, 2)?;
    // Lines of six values: draws come in fours for two lines at a time.
    let twos = of(PatchGrid { height: 12, width: 6, depth: 1, window: 3, ..OVERLAPPING }, 1)?;
    Ok(vec![
        ("colours", colours, drawn()),
        ("real-valued colours", gaussian, slow),
        ("cells", cells.clone(), config()),
        ("cells, drawn", cells, drawn()),
        ("windows that do not overlap", apart, drawn()),
        ("bands of two lines", twos, drawn()),
    ])
}

#[test]
fn every_number_of_ranks_learns_patches_as_one_does() -> Result<()> {
    every_number_learns_alike(&cases(RbmConfig::patches(OVERLAPPING, 2)?))?;
    every_number_learns_alike(&grids()?)
}

#[test]
fn a_checkpoint_of_patches_is_that_of_all_ranks() -> Result<()> {
    checkpoints_go_on(&cases(RbmConfig::patches(OVERLAPPING, 2)?))?;
    checkpoints_go_on(&grids()?)
}

#[test]
fn a_network_of_patches_is_trained_layer_by_layer() -> Result<()> {
    let image = |planes, stride| PatchGrid { planes, height: 40, width: 16, depth: 1, window: 8, stride };
    // Values in lines, of colours, and in cells; above them patches of patches, and dense units.
    for lowest in [image(1, 2), image(3, 2), image(1, 8), image(4, 4)] {
        let lowest = RbmConfig::patches(lowest, 4)?;
        let mut layers = vec![lowest];
        while let Some(grid) = layers.last().and_then(|layer| layer.hidden_grid(1, 1))
            && layers.len() < 3
        {
            // Windows of two by two, as far as there are so many.
            let window = grid.width.min(2);
            layers.push(RbmConfig::patches(PatchGrid { window, ..grid }, 4)?);
        }
        let n = layers.last().map_or(0, |layer| layer.n_hidden);
        layers.push(RbmConfig::new(n, 16));
        let config = DbnConfig { layers, ..DbnConfig::new(&[1, 1]) };
        let network = Dbn::init(config, Philox::new(7, 0), &CPU)?;
        for world in [2, 3] {
            layers_are_alike(&network, world)?;
        }
    }
    Ok(())
}

#[test]
fn each_rank_has_its_lines_alone() -> Result<()> {
    // Of 7 lines of 4 hidden units.
    let chains = |world| {
        each(world, |group| {
            let rbm = Rbm::init(RbmConfig::patches(OVERLAPPING, 2)?, Philox::new(7, 0), &CPU)?;
            RbmTrainer::new(&rbm, config(), Philox::new(7, 1))?.in_group(group)?.chains()?.dim(1)
        })
    };
    assert_eq!(chains(2)?, [16, 12]);
    assert_eq!(chains(4)?, [8, 8, 8, 4]);
    Ok(())
}

#[test]
fn windows_that_ranks_cannot_share_are_refused() -> Result<()> {
    let of = |grid, hidden| refused(RbmConfig::patches(grid, hidden)?, config());
    let said = "RbmTrainer: of patches, each of 2 ranks must have a line of windows, of units and of values by fours, got ";
    let one = PatchGrid { height: 3, ..OVERLAPPING };
    assert_eq!(of(one, 2)?, format!("{said}1 lines of 4 units each, on lines of 4 values"));
    assert_eq!(of(OVERLAPPING, 1)?, format!("{said}7 lines of 2 units each, on lines of 4 values"));
    let odd = PatchGrid { width: 5, ..OVERLAPPING };
    assert_eq!(of(odd, 4)?, format!("{said}7 lines of 12 units each, on lines of 5 values"));
    Ok(())
}
