//! Which class each point belongs to.

/// The classes of some points.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Classes {
    /// Their names, in the order of their labels; one without labels.
    pub names: Vec<String>,
    /// The class of each point, an index of `names`: `[n]`.
    pub of: Vec<u32>,
    /// Whether there are labels.
    pub labelled: bool,
}

/// With more different labels than these, points are not coloured: no one can tell so many colours
/// apart.
pub const MOST: usize = 256;

impl Classes {
    /// The classes of `n` points by their labels, only those that occur; a label of which `names`
    /// has no name is called by its number. Without labels, or with more than 256 different ones,
    /// all points are of one class.
    pub fn new(n: usize, labels: Option<&[u32]>, names: Option<&[String]>) -> Self {
        let one = Self { names: vec!["all".to_owned()], of: vec![0; n], labelled: false };
        let Some(labels) = labels else { return one };
        let mut present = labels.to_vec();
        present.sort_unstable();
        present.dedup();
        if present.len() > MOST {
            return one;
        }
        let name = |label: &u32| names.and_then(|names| names.get(*label as usize).cloned());
        let index = |label: &u32| present.partition_point(|other| other < label) as u32;
        Self {
            of: labels.iter().map(index).collect(),
            names: present.iter().map(|label| name(label).unwrap_or_else(|| label.to_string())).collect(),
            labelled: true,
        }
    }

    /// How many points each class has.
    pub fn counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.names.len()];
        for &k in &self.of {
            counts[k as usize] += 1;
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_the_labels_that_occur_by_name_or_number() {
        let names = ["zero", "one", "two"].map(str::to_owned);
        let classes = Classes::new(4, Some(&[7, 2, 0, 2]), Some(&names));
        assert_eq!(classes.names, ["zero", "two", "7"]);
        assert_eq!((classes.of.as_slice(), classes.counts()), (&[2, 1, 0, 1][..], vec![1, 2, 1]));
    }

    #[test]
    fn without_labels_or_with_too_many_all_are_of_one_class() {
        let many: Vec<u32> = (0..=MOST as u32).collect();
        for (n, labels) in [(3, None), (many.len(), Some(many.as_slice()))] {
            let classes = Classes::new(n, labels, None);
            assert_eq!((classes.names.len(), classes.of, classes.labelled), (1, vec![0; n], false));
        }
        assert_eq!(Classes::new(MOST, Some(&many[1..]), None).names.len(), MOST);
    }
}
