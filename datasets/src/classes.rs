//! Data sets in the classes of others, and joined with others to test on.
use crate::labels::{KnownClasses, MAX_CLASSES};
use crate::{Dataset, Error, Result};

impl Dataset {
    /// Whether rows are neither images nor columns of a table.
    pub(crate) fn is_of_vectors(&self) -> bool {
        self.train.image.is_none() && self.column_names.is_none()
    }

    /// The same with why its labels were left out, if they were.
    pub(crate) fn without_labels(mut self, why: Option<String>) -> Self {
        if let Some(why) = &why {
            self.notes.push(format!("labels are left out, for they are no classes: {why}"));
        }
        self.left_out_labels = why;
        self
    }

    /// The same with labels in other classes, which are matched by name; without names a class goes
    /// by its number.
    ///
    /// # Errors
    /// When a row has a label of none of these classes; the message names the data set and the
    /// class.
    pub fn with_classes(mut self, known: KnownClasses<'_>) -> Result<Self> {
        for split in std::iter::once(&mut self.train).chain(&mut self.test) {
            if let Some(labels) = &split.labels {
                split.labels = Some(known.renumber(&self.name, labels, self.class_names.as_deref())?.into());
            }
        }
        self.class_names = known.names.map(<[String]>::to_vec);
        Ok(self)
    }

    /// The same with the rows of another data set to test on: those that it keeps for tests, else
    /// all of them. Labels are matched by the names of their classes.
    ///
    /// # Errors
    /// When rows or columns differ from those of the training rows, or a label is of a class that
    /// these do not have.
    pub fn with_test(mut self, test: Self) -> Result<Self> {
        if let (Some(ours), Some(theirs)) = (&self.column_names, &test.column_names)
            && let Some((ours, theirs)) = ours.iter().zip(theirs).find(|(ours, theirs)| ours != theirs)
        {
            return Err(Error::format(
                &test.name,
                format!("column '{theirs}' stands where {} has '{ours}'", self.name),
                "give the same columns in the same order, or choose them by `DataOptions::features`",
            ));
        }
        // Classes without names may have any number.
        let n = self.class_names.as_ref().map_or(MAX_CLASSES, Vec::len);
        let is_labelled = self.train.labels.is_some();
        let known = KnownClasses { names: self.class_names.as_deref(), n };
        let test = if is_labelled { test.with_classes(known)? } else { test };
        let (name, left_out) = (test.name, test.left_out_labels);
        let notes = test.notes.into_iter().map(|note| format!("{name}: {note}"));
        self.notes.extend(notes);
        let mut rows = test.test.unwrap_or(test.train);
        if !is_labelled {
            rows.labels = None;
        }
        rows.check_images_like(&self.train, &name, "make all images of a data set the same")?;
        let joined = Self::new(self.name, self.train, Some(rows), self.class_names)?;
        let left_out_labels = self.left_out_labels.or(left_out);
        Ok(Self { column_names: self.column_names, notes: self.notes, left_out_labels, ..joined })
    }
}
