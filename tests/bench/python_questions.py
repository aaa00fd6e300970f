"""Questions about Python's documentation, each with the page that answers it or words of the passage that does, and
such that it does not answer. They are asked, not tuned by."""

# In other words than the documentation's, with the page.
PARAPHRASED = (
    (
        "How do I keep the result of a slow call so that the same arguments do not compute it again?",
        "library/functools.html",
    ),
    (
        "I add entries to an ordered array all the time and do not want to order it anew each time.",
        "library/bisect.html",
    ),
    ("How can I start another program and read what it prints?", "library/subprocess.html"),
    ("Which mapping makes up an initial entry by itself where none is there yet?", "library/collections.html"),
    (
        "How do I clean up a number of opened things that I only learn while the program runs?",
        "library/contextlib.html",
    ),
    ("What should I draw login tokens from so that nobody can guess them?", "library/secrets.html"),
    (
        "How can pure Python work use all cores although only one thread runs bytecode at a time?",
        "library/multiprocessing.html",
    ),
    ("How can I duplicate a nested list so that changing one leaves the other alone?", "library/copy.html"),
    ("How do I find out which of two small snippets is quicker?", "library/timeit.html"),
    ("Which number type should I take for an accountant, who hates 0.1 + 0.2 being a bit off?", "library/decimal.html"),
    ("A user mistyped a word: how do I offer the nearest ones that I know?", "library/difflib.html"),
    ("Break a typed command into its arguments the way the terminal does.", "library/shlex.html"),
    ("How can I silence a library that writes to the screen, and get its text as a string?", "library/contextlib.html"),
    ("Strip the indentation that all lines of a block have in common.", "library/textwrap.html"),
    ("How do I read a table whose cells are parted by semicolons?", "library/csv.html"),
    ("Walk along two sequences of unlike length and pad the one that ends first.", "library/itertools.html"),
    ("How do I see which lines of my program eat the memory?", "library/tracemalloc.html"),
    ("What do I do so that a long task gives up after some seconds in a coroutine?", "library/asyncio-task.html"),
    ("I want exactly one of a few named constants, comparable by identity.", "library/enum.html"),
    ("How do I shuffle a deck of cards and deal some out of it?", "library/random.html"),
)

# With an identifier or a number, and words of the passage.
IDENTIFIED = (
    ("What does EX_NOPERM mean?", "insufficient permissions to perform the operation"),
    ("Why is sys.getrefcount one too high?", "The count returned is generally one higher than you might expect"),
    ("When is the exit status 120?", "the exit status is changed to 120"),
    (
        "What does ITIMER_PROF count?",
        "Decrements interval timer both when the process executes and when the system is executing",
    ),
    ("sqlite3.PARSE_DECLTYPES", "to look up a converter function using the declared types for each column"),
    ("Which address does SysLogHandler use, is it port 514?", "('localhost', 514) is used"),
    (
        "What is the memory limit maxmem of hashlib.scrypt, 32 MiB?",
        "maxmem limits memory (OpenSSL 1.1.0 defaults to 32 MiB)",
    ),
    (
        "ValueError: Exceeds the limit (4300) for integer string conversion",
        "for integer string conversion: value has 5432 digits",
    ),
    ("What is ru_maxrss?", "maximum resident set size"),
    ("strftime %j", "Day of the year as a zero-padded decimal number"),
    ("csv.QUOTE_NONNUMERIC", "quote all non-numeric fields"),
    ("status 418 of http.HTTPStatus", "IM_A_TEAPOT"),
    ("What does PYTHONDONTWRITEBYTECODE do?", "won’t try to write .pyc files on the import of source modules"),
    ("What is sys.float_info.epsilon?", "difference between 1.0 and the least value greater than 1.0"),
    ("signal.SIGCHLD", "Child process stopped or terminated"),
    ("What changed in 3.7 about the order of dict?", "Dictionary order is guaranteed to be insertion order"),
    ("ssl.OP_NO_SSLv3", "Prevents an SSLv3 connection"),
    (
        "asyncio.PYTHONASYNCIODEBUG slow_callback_duration 100 ms",
        "slow_callback_duration attribute can be used to set the minimum execution duration",
    ),
    ("re.DOTALL", "Make the '.' special character match any character at all, including a newline"),
    ("What is errno.ENOTEMPTY?", "Directory not empty"),
)

# In the documentation's words, and words of the passage.
OWN_WORDS = (
    (
        "How does heapq.heapreplace pop and return the smallest item and push the new item?",
        "Pop and return the smallest item from the heap, and also push the new item",
    ),
    (
        "Are deques thread-safe for appends and pops from either side?",
        "memory efficient appends and pops from either side of the deque",
    ),
    (
        "What does the glob module do with pathnames matching a pattern according to the rules of the Unix shell?",
        "finds all the pathnames matching a specified pattern according to the rules used by the Unix shell",
    ),
    (
        "When does the Queue put raise Full if no free slot was available within that time?",
        "raises the Full exception if no free slot was available within that time",
    ),
    (
        "How does shutil copy an entire directory tree rooted at src to a directory named dst?",
        "Recursively copy an entire directory tree rooted at src",
    ),
    ("How does calendar.isleap return True if year is a leap year?", "Returns True if year is a leap year"),
    (
        "When does is_tarfile return True, if name is a tar archive file that the tarfile module can read?",
        "Return True if name is a tar archive file",
    ),
    (
        "What is the __dict__ attribute for a module, class, instance, or any other object that vars returns?",
        "Return the __dict__ attribute for a module, class, instance",
    ),
    (
        "What does configparser interpolation with values in the same section and the special DEFAULT section do?",
        "It enables values to contain format strings which refer to other values in the same section",
    ),
    (
        "Does pickle restore an arbitrary object hierarchy, and is the pickle module secure?",
        "The pickle module is not secure",
    ),
    ("What is an abstract base class register virtual subclass?", "as a “virtual subclass” of this ABC"),
    (
        "How does the fractions limit_denominator find the closest Fraction?",
        "Finds and returns the closest Fraction to self that has denominator at most",
    ),
    (
        "How does argparse nargs '?' consume one argument from the command line?",
        "One argument will be consumed from the command line if possible, and produced as a single item",
    ),
    (
        "What does unittest setUp do before each test method, to prepare the test fixture?",
        "Method called to prepare the test fixture",
    ),
    (
        "What does tempfile.mkdtemp do to create a temporary directory in the most secure manner possible?",
        "Creates a temporary directory in the most secure manner possible",
    ),
    (
        "How does random.sample return a k length list of unique elements chosen from the population sequence?",
        "list of unique elements chosen from the population sequence",
    ),
    ("What does inspect.signature return for a callable?", "Return a Signature object for the given callable"),
    (
        "What does the statistics median_low return of a data set with an even number of data points?",
        "When it is even, the smaller of the two middle values is returned",
    ),
    (
        "Which generic constructor of hashlib takes the string name of the desired algorithm as its first parameter?",
        "generic constructor that takes the string name of the desired algorithm as its first parameter",
    ),
    (
        "How does socket.settimeout set a timeout on blocking socket operations?",
        "Set a timeout on blocking socket operations",
    ),
)

# Of other fields, and of other software.
UNANSWERED = (
    "How long does a hard-boiled egg have to cook?",
    "Which vaccine does a traveller to Kenya need?",
    "Who won the football world cup in 1998?",
    "How many days of holiday do employees get in their first year?",
    "What is the boiling point of ethanol?",
    "When do the tulips have to be planted?",
    "How do I change a flat tyre on a bicycle?",
    "What is the interest rate of my savings account?",
    "Where can I return shoes that do not fit?",
    "Which wine goes with salmon?",
    "How high is the Matterhorn?",
    "Who painted the Night Watch?",
    "What are the side effects of ibuprofen?",
    "How do I apply for parental leave?",
    "What does the warranty of the washing machine cover?",
    "When does the last train to Lyon leave?",
    "How much does a stamp for a letter abroad cost?",
    "Which trees keep their leaves in winter?",
    "How do I get red wine out of a carpet?",
    "What is the capital of Mongolia?",
    "How do I pivot a DataFrame in pandas?",
    "How do I install a Helm chart on Kubernetes?",
    "What is the borrow checker of Rust?",
    "How does a React component keep state with useState?",
    "How do I train a random forest in scikit-learn?",
    "How do I write a Dockerfile with several stages?",
    "How do I squash commits with git rebase?",
    "Which Terraform provider makes an S3 bucket?",
    "How do I add an index to a MongoDB collection?",
    "How do I center a div in CSS?",
    "How do I configure nginx as a reverse proxy?",
    "What does the Spring annotation Autowired do?",
    "How do I plot a histogram with matplotlib?",
    "How do I write a goroutine with a channel in Go?",
    "How do I set up a VLAN on a Cisco switch?",
    "How do I quantize a model to GGUF with llama.cpp?",
    "How do I make a pivot table in Excel?",
    "How do I define a Django model with a foreign key?",
    "How do I tune shared_buffers of PostgreSQL?",
    "How do I pair Bluetooth headphones with an iPhone?",
)
