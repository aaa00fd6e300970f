"""A corpus of four passages, small enough to be put in whole, and questions that the built-in model answers from it."""

from service.model.prompt_builder import PromptPassage

PASSAGES = (
    PromptPassage(
        "Code K7 stands for Belford. Nothing else was noted on that day. The captain is Corina.", "Register 12"
    ),
    PromptPassage("Halio lives in K7. Halio keeps a badger. Norworks was founded by the captain.", "Letter 40"),
    PromptPassage("Norworks makes lamps. The ink is still easy to read. The next page is about Selark.", "Ledger 33"),
    PromptPassage("It is led by Rosen. Some lamps are made by Dalware. Dalware is based in Fenhaven.", "Ledger 33"),
)
QUESTIONS = (
    "Which animal does Halio keep?",
    "Where does Halio live?",
    "Who founded Norworks?",
    "Who leads Selark?",
)
