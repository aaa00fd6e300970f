// A document of the made-up world that the built-in model knows, in the chunks it is kept in, and questions about it.

export const COLLECTION = "samples";
export const NEIGHBORS = 3; // some of the questions need a chunk that shares no word with them

export const DOCUMENT = {
  id: "sample",
  title: "Register 12",
  chunks: [
    { text: "Code K7 stands for Belford. Nothing else was noted on that day. The captain is Corina." },
    { text: "Halio lives in K7. Halio keeps a badger. Norworks was founded by the captain." },
    { text: "Norworks makes lamps. The ink is still easy to read. The next page is about Selark." },
    { text: "It is led by Rosen. Some lamps are made by Dalware. Dalware is based in Fenhaven." },
  ],
};

export const QUESTIONS = [
  "Which animal does Halio keep?",
  "Where does Halio live?",
  "Who founded Norworks?",
  "Who leads Selark?",
];
