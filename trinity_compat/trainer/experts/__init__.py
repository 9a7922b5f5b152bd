"""An expert's rows beside fresh answers: claimed in the same store, trained in the same update."""
